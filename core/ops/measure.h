// How long a candidate takes for a query, on tensors of the query's own shapes: what selection by measuring goes by,
// and `bench op`.
#pragma once
#include "ops/backend.h"
#include "plugin/registry.h"

#include <functional>

namespace fvlm::ops {

// What a query stands for, ready to be called, in an instance of its own: a loser leaves nothing behind.
struct Calls {
  std::function<void()> forward;
  std::function<void()> backward; // of the forward before; empty where the query wants none
  std::function<void()> both;     // as training does them
};

// `flags`: of each call. Throw Error for a candidate that cannot. [setup]
Calls calls_of(const Candidate<fvlm_attention_v1>& candidate, const fvlm_attention_query& query, at::Device device,
               uint32_t flags = 0);
// Both by the table's `fused`: the engine's way through, but for preferences.
Calls calls_of(const Candidate<fvlm_loss_v1>& candidate, const fvlm_loss_query& query, at::Device device,
               uint32_t flags = 0);
Calls calls_of(const Candidate<fvlm_kernels_v1>& candidate, const fvlm_kernels_query& query, at::Device device,
               uint32_t flags = 0);

// One step; it has no backward.
Calls calls_of(const Candidate<fvlm_optimizer_v1>& candidate, const fvlm_optimizer_query& query, at::Device device,
               uint32_t flags = 0);

// The segments that hold anything in calls of attention, and the rows of each.
struct Filling {
  int64_t segments, of_q, of_kv;
};
Filling filling_of(const fvlm_attention_query& query);

// Seconds of the fastest of a few calls. Throws Error for one that fails.
double fastest(const std::function<void()>& work, at::Device device);

// Of forward, and of backward where the query wants one. [setup]
template <class Table, class Query>
double measure(const Candidate<Table>& candidate, const Query& query, at::Device device, uint32_t flags = 0) {
  return fastest(calls_of(candidate, query, device, flags).both, device);
}

} // namespace fvlm::ops
