// The engine's own plugin, against which `--bench` measures.
#pragma once
#include "check/context.h"

#include <memory>

namespace fvlm::check {

void set_reference_entry(fvlm_plugin_entry_function entry);
fvlm_plugin_entry_function reference_entry();

// A context like this one for the reference's table of the same kind; NULL if it has none.
std::unique_ptr<Context> reference_context(const Context& context);

} // namespace fvlm::check
