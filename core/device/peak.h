// How fast a device can be at best, by its maker's data sheet.
#pragma once
#include <optional>
#include <string_view>

namespace fvlm::device {

enum class Arithmetic { fp32, tf32, half }; // half: bf16 and fp16

// Floating-point operations a second of dense matrix products. None for a device that is not in the table.
std::optional<double> peak_flops(std::string_view name, Arithmetic arithmetic);

} // namespace fvlm::device
