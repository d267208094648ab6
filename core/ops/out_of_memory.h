// Whether an error says that memory ran out.
#pragma once
#include <exception>

namespace fvlm::ops {

bool is_out_of_memory(const std::exception& error);

} // namespace fvlm::ops
