// Memory of the host between steps.
#pragma once

namespace fvlm::ops {

// From now on what is freed stays with the process: each step asks for the same sizes again, and pages that were given
// back to the system come again one fault at a time. For processes that train. [setup]
void keep_freed_memory();

} // namespace fvlm::ops
