// libfvlm_engine.so: what of the engine needs LibTorch, behind one entry point (tensor_module.h).
#include "base/error.h"
#include "cli/tensor_module.h"
#include "ops/reference.h"
#include "ops/torch_threads.h"
#include "train/memory.h"

#include <c10/util/Exception.h>

namespace fvlm::cli {
namespace {

// What LibTorch throws comes with a page of addresses; what it says of a device, with advice for those who compile it.
template <int (*verb)(Arguments)>
int in_words(Arguments arguments) {
  try {
    return verb(arguments);
  } catch (const c10::Error& error) {
    const std::string what = error.what_without_backtrace();
    if (!train::is_out_of_memory(error) && !what.starts_with("CUDA") && !what.starts_with("Unexpected error from cuda"))
      throw Error(ErrorKind::internal, "a defect in fvlm-engine: " + what);
    throw Error(ErrorKind::device, what.substr(0, what.find('\n')))
        .advise("`fvlm-engine doctor` shows what of this machine can be used, and who uses it");
  }
}

} // namespace
} // namespace fvlm::cli

extern "C" FVLM_EXPORT const fvlm::cli::TensorModule* fvlm_tensor_module() {
  using namespace fvlm::cli;
  static const TensorModule module = [] {
    fvlm::ops::use_torch_threads();
    return TensorModule{FVLM_VERSION,
                        fvlm::ops::reference_entry,
                        in_words<check_plugin>,
                        in_words<trace_model>,
                        in_words<generate_answers>,
                        in_words<evaluate_model>,
                        in_words<bench_subject>,
                        in_words<explore_data>,
                        in_words<train_stages>};
  }();
  return &module;
}
