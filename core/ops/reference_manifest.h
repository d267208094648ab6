// What the registry is told of the `reference` before LibTorch is there to ask it.
#pragma once
#include "plugin/manifest.h"

#include <fvlm/fvlm.h>

namespace fvlm::ops {

inline Manifest reference_manifest() {
  return builtin_manifest("reference", FVLM_VERSION, "every kind in plain ATen: what the others are held against",
                          {FVLM_ATTENTION_KIND, FVLM_LOSS_KIND, FVLM_KERNELS_KIND, (FVLM_OPTIMIZER_KIND("adamw")),
                           (FVLM_OPTIMIZER_KIND("muon")), FVLM_PACKER_KIND, (FVLM_QUANTIZER_KIND("int8"))},
                          {"cpu", "cuda"});
}

} // namespace fvlm::ops
