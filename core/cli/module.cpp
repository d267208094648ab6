// libfvlm_engine.so: what of the engine needs LibTorch, behind one entry point (tensor_module.h).
#include "cli/tensor_module.h"
#include "ops/reference.h"
#include "ops/torch_threads.h"

extern "C" FVLM_EXPORT const fvlm::cli::TensorModule* fvlm_tensor_module() {
  static const fvlm::cli::TensorModule module = [] {
    fvlm::ops::use_torch_threads();
    return fvlm::cli::TensorModule{FVLM_VERSION,
                                   fvlm::ops::reference_entry,
                                   fvlm::cli::check_plugin,
                                   fvlm::cli::trace_model,
                                   fvlm::cli::generate_answers,
                                   fvlm::cli::evaluate_model,
                                   fvlm::cli::bench_subject,
                                   fvlm::cli::explore_data,
                                   fvlm::cli::train_stages};
  }();
  return &module;
}
