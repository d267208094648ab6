// Plugins' parallel_for on LibTorch's own CPU threads, so that a process has one pool and not two.
#pragma once

namespace fvlm::ops {

// Call once, before the first plugin works and after at::set_num_threads(). [setup]
void use_torch_threads();

} // namespace fvlm::ops
