// The manifest of the plugin "reference", which the registry needs before LibTorch is loaded.
#pragma once
#include "plugin/manifest.h"

#include <fvlm/fvlm.h>

namespace fvlm::ops {

inline Manifest reference_manifest() {
  return builtin_manifest("reference", FVLM_VERSION, "every kind in plain ATen, which the others are compared with",
                          {FVLM_ATTENTION_KIND, FVLM_LOSS_KIND, FVLM_KERNELS_KIND, (FVLM_OPTIMIZER_KIND("adamw")),
                           (FVLM_OPTIMIZER_KIND("muon")), FVLM_PACKER_KIND, (FVLM_QUANTIZER_KIND("int8")),
                           (FVLM_QUANTIZER_KIND("int4")), (FVLM_QUANTIZER_KIND("w8a8"))},
                          {"cpu", "cuda"});
}

} // namespace fvlm::ops
