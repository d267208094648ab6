// What import and export share: the element type as the user names it, and the report of what was written.
#pragma once
#include "model/weights/transfer.h"

#include <string>

namespace fvlm::cli {

DType dtype_of_option(const std::string& text); // "fp32", "bf16" or "fp16"

// Prints what `out` holds now. What did not fit its element type is a warning on standard error too.
void print_transfer(const TransferReport& report, const std::string& out, bool json);

} // namespace fvlm::cli
