// Shared by import and export: parsing --dtype, and the report of what was written.
#pragma once
#include "cli/options.h"
#include "model/weights/transfer.h"

#include <optional>
#include <string>

namespace fvlm::cli {

std::optional<DType> dtype_option(const ParsedOptions& parsed); // --dtype, "fp32", "bf16" or "fp16", where it is given

Options export_options(); // of `export`, which quantizes in the module

// Warns of values that are not finite, and of those that overflowed their dtype.
void warn_of_values(const TransferReport& report);
// Prints the contents of `out`, and warns of values.
void print_transfer(const TransferReport& report, const std::string& out, bool json);

} // namespace fvlm::cli
