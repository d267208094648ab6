// An observer of the calls to plugins, for profiling a step.
#pragma once
#include <fvlm/fvlm.h>

#include <functional>
#include <string_view>
#include <variant>

namespace fvlm::ops {

using CalledQuery = std::variant<fvlm_attention_query, fvlm_paged_attention_query, fvlm_loss_query, fvlm_kernels_query,
                                 fvlm_optimizer_query>;

struct CallObserver {
  std::function<void()> begin;
  // operation: "linear input gradient". bytes: of all tensors that the call was given.
  std::function<void(std::string_view operation, const CalledQuery& query, double bytes)> end;
};

// The observer of the calling thread; null where there is none.
const CallObserver* call_observer();
void use_call_observer(const CallObserver* watch);

} // namespace fvlm::ops
