// The plugin "reference": every kind in plain ATen, statically linked. The others are compared with it.
#pragma once
#include <fvlm/abi.h>

namespace fvlm::ops {

// Its entry point, as fvlm_plugin_entry_v1 of a shared library: for Registry::add_static.
const fvlm_plugin* reference_entry(const fvlm_host* host);

} // namespace fvlm::ops
