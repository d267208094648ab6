// Times a plugin on a query, with synthetic tensors of the query's shapes: for the selection "measure", and for
// `bench op`.
#pragma once
#include "ops/backend.h"
#include "plugin/registry.h"

#include <functional>

namespace fvlm::ops {

// A query's calls on synthetic tensors, with a plugin instance of their own that is destroyed with them.
struct Calls {
  std::function<void()> forward;
  std::function<void()> backward; // of the last forward; empty for a query without backward
  std::function<void()> both;     // forward and backward as training calls them
};

// `flags`: of each fvlm_call. All throw Error where the candidate does not support the query. [setup]
Calls make_calls(const Candidate<fvlm_attention_v1>& candidate, const fvlm_attention_query& query, at::Device device,
                 uint32_t flags = 0);
Calls make_calls(const Candidate<PagedAttentionTable>& candidate, const fvlm_paged_attention_query& query,
                 at::Device device, uint32_t flags = 0);
// `both` calls the table's `fused`, as training does.
Calls make_calls(const Candidate<fvlm_loss_v1>& candidate, const fvlm_loss_query& query, at::Device device,
                 uint32_t flags = 0);
Calls make_calls(const Candidate<fvlm_kernels_v1>& candidate, const fvlm_kernels_query& query, at::Device device,
                 uint32_t flags = 0);

// `forward` is one optimizer step.
Calls make_calls(const Candidate<fvlm_optimizer_v1>& candidate, const fvlm_optimizer_query& query, at::Device device,
                 uint32_t flags = 0);

// The packing of synthetic attention tensors: how many segments are not empty, and the rows of each.
struct TypicalPacking {
  int64_t segments, of_q, of_kv;
};
TypicalPacking typical_packing(const fvlm_attention_query& query);

// The keys of each row of a synthetic call over pages: half as many as fit into a sequence's pages, as far as the pool
// goes.
int64_t typical_keys(const fvlm_paged_attention_query& query);

// Seconds of the fastest of a few calls. Throws Error where one fails.
double fastest(const std::function<void()>& work, at::Device device);

// Seconds of forward, and of backward where the query has one. [setup]
template <class Table, class Query>
double measure(const Candidate<Table>& candidate, const Query& query, at::Device device, uint32_t flags = 0) {
  return fastest(make_calls(candidate, query, device, flags).both, device);
}

} // namespace fvlm::ops
