// The entry point of the plugin "reference".
#include "ops/reference.h"
#include "ops/reference/references.h"

namespace fvlm::ops {

const fvlm_plugin* reference_entry(const fvlm_host* host) {
  return sdk::entry<reference::Attention, reference::Loss, reference::Kernels, reference::AdamW, reference::Muon,
                    reference::Packer, reference::Int8, reference::Int4, reference::W8A8>(
      host, "reference", host ? host->engine_version : "");
}

} // namespace fvlm::ops
