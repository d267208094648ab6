// The plugin "cuda-requirements": what the engine's plugins for CUDA save for their backward passes and need as
// workspace, for dry runs on machines where those plugins cannot be asked, because there is no GPU or the build has
// none of them. Its functions are not called. Where the reference's requirements are the same, they are not repeated.
#pragma once
#include "plugin/manifest.h"

#include <fvlm/fvlm.h>

namespace fvlm::ops {

inline Manifest cuda_requirements_manifest() {
  return builtin_manifest("cuda-requirements", FVLM_VERSION,
                          "what the engine's plugins for CUDA need, without computing",
                          {FVLM_ATTENTION_KIND, FVLM_LOSS_KIND, FVLM_KERNELS_KIND, (FVLM_OPTIMIZER_KIND("adamw")),
                           (FVLM_OPTIMIZER_KIND("muon"))},
                          {"cuda"});
}

const fvlm_plugin* cuda_requirements_entry(const fvlm_host* host);

} // namespace fvlm::ops
