// Ends the process as a return from main() does, without the destructors of static objects: those of LibTorch's tables
// alone take a fifth of the processor time of a short command.
#pragma once

namespace fvlm {

// Writes what stdout holds, and runs what std::at_quick_exit() was given. A process with sanitizers or a GPU's driver
// runs all destructors: leaks are reported and traces of a GPU are completed there.
[[noreturn]] void end_process(int code);

} // namespace fvlm
