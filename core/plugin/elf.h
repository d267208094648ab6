// Looks at a library's ELF header before the dynamic linker does: its messages are clearer, and a file cut short would
// have the linker touch pages that are not there.
#pragma once
#include "plugin/trust.h"

namespace fvlm {

// Throws Error(plugin) when the file is not a whole shared library for this machine.
void check_elf(const OpenedFile& file);

} // namespace fvlm
