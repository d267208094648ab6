// How long a candidate takes for a query, on tensors of the query's own shapes: what selection by measuring goes by.
#pragma once
#include "ops/backend.h"
#include "plugin/registry.h"

namespace fvlm::ops {

// Seconds of the fastest of a few forward calls, with their backward where the query wants one. In an instance of its
// own, so that a loser leaves nothing behind. Throws Error for a candidate that fails. [setup]
double measure(const Candidate<fvlm_attention_v1>& candidate, const fvlm_attention_query& query, at::Device device);
// By the table's `fused` where gradients are wanted: the engine's way through, but for preferences.
double measure(const Candidate<fvlm_loss_v1>& candidate, const fvlm_loss_query& query, at::Device device);
double measure(const Candidate<fvlm_kernels_v1>& candidate, const fvlm_kernels_query& query, at::Device device);

} // namespace fvlm::ops
