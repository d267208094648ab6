// The entry point of the plugin "reference".
#include "ops/reference.h"
#include "ops/reference/references.h"

namespace fvlm::ops {

const fvlm_plugin* reference_entry(const fvlm_host* host) {
  using namespace reference;
  return sdk::entry<Attention, Loss, Kernels, AdamW, Muon, Packer, Int8, Int4, W8A8>(host, "reference",
                                                                                     host ? host->engine_version : "");
}

} // namespace fvlm::ops
