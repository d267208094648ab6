// The host's allocator, tuned for training.
#pragma once

namespace fvlm::ops {

// Makes malloc keep freed memory in the process. Every step allocates the same sizes, and pages that were returned to
// the system would come back one page fault at a time. [setup]
void keep_freed_memory();

} // namespace fvlm::ops
