// Peak floating-point throughput of GPUs, from the vendor's data sheets.
#pragma once
#include <optional>
#include <string_view>

namespace fvlm::device {

enum class Arithmetic { fp32, tf32, half }; // half: bf16 and fp16

// Dense floating-point operations per second. Empty for a device that is not in the table.
std::optional<double> peak_flops(std::string_view name, Arithmetic arithmetic);

} // namespace fvlm::device
