// Checks a library's ELF headers before the dynamic linker reads them: its error messages are less clear, and a
// truncated file would make it access unmapped pages.
#pragma once
#include "plugin/trust.h"

namespace fvlm {

// Throws Error(plugin) unless the file is a complete shared library for this machine.
void check_elf(const OpenedFile& file);

} // namespace fvlm
