// The entry point of libfvlm_engine.so, the part of the engine that needs LibTorch (tensor_module.h).
#include "base/error.h"
#include "cli/tensor_module.h"
#include "ops/reference.h"
#include "ops/torch_threads.h"
#include "train/memory.h"
#include "train/memory_packing.h"
#include "train/step_memory.h"
#include "train/thread_replicas.h"

#include <c10/util/Exception.h>

namespace fvlm::cli {
namespace {

// Calls a function and translates LibTorch's exceptions: they carry a stack trace and, for device errors, advice for
// people who compile LibTorch.
template <auto function, class... Parameters>
auto with_torch_errors_translated(Parameters... parameters) -> decltype(function(parameters...)) {
  try {
    return function(parameters...);
  } catch (const c10::Error& error) {
    const std::string what = error.what_without_backtrace();
    if (!train::is_out_of_memory(error) && !what.starts_with("CUDA") && !what.starts_with("Unexpected error from cuda"))
      throw Error(ErrorKind::internal, "a defect in fvlm-engine: " + what);
    throw Error(ErrorKind::device, what.substr(0, what.find('\n')))
        .advise("`fvlm-engine doctor` shows what of this machine can be used, and who uses it");
  }
}

std::optional<budget::ChosenPack> choose_pack(const plan::Plan& plan, const plan::Stage& stage, const DataSizes& data,
                                              const ModelDescription& description, Registry& registry,
                                              budget::Device device, int64_t ranks, int64_t requested) {
  const budget::MemoryLimit limit = train::memory_limit(device, requested);
  if (limit.bytes == 0) return {};
  const at::Device where = device == budget::Device::cpu ? at::kCPU : at::kCUDA;
  return train::choose_pack(plan, stage, data, description, registry,
                            {device, limit, ranks, 0, train::choose_replicas(description, where).parts});
}

} // namespace
} // namespace fvlm::cli

extern "C" FVLM_EXPORT const fvlm::cli::TensorModule* fvlm_tensor_module() {
  using namespace fvlm::cli;
  static const TensorModule module = [] {
    fvlm::ops::use_torch_threads();
    return TensorModule{FVLM_VERSION,
                        fvlm::ops::reference_entry,
                        with_torch_errors_translated<fvlm::train::stage_budget>,
                        with_torch_errors_translated<choose_pack>,
                        with_torch_errors_translated<check_plugin>,
                        with_torch_errors_translated<trace_model>,
                        with_torch_errors_translated<generate_answers>,
                        with_torch_errors_translated<chat_with_model>,
                        with_torch_errors_translated<export_quantized_model>,
                        with_torch_errors_translated<serve_model>,
                        with_torch_errors_translated<evaluate_model>,
                        with_torch_errors_translated<bench_subject>,
                        with_torch_errors_translated<explore_data>,
                        with_torch_errors_translated<train_stages>,
                        with_torch_errors_translated<manage_adapters>,
                        with_torch_errors_translated<report_of_ranks>};
  }();
  return &module;
}
