// The plugin named "reference": every kind in plain ATen, linked in statically. The others are held against it.
#pragma once
#include <fvlm/abi.h>

namespace fvlm::ops {

// As fvlm_plugin_entry_v1 of a shared library: what the registry's add_static takes.
const fvlm_plugin* reference_entry(const fvlm_host* host);

} // namespace fvlm::ops
