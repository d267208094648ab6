#include "device/peak.h"

namespace fvlm::device {
namespace {

// The first row whose name is a substring of the device's name applies.
constexpr struct {
  std::string_view name;
  double fp32, tf32, half; // 10^12 per second
} devices[] = {
    {"H100 PCIe", 51.2, 378, 756}, {"H100 NVL", 60, 417.5, 835}, {"H100", 66.9, 494.7, 989.4},
    {"H200", 66.9, 494.7, 989.4},  {"A100", 19.5, 156, 312},
};

} // namespace

std::optional<double> peak_flops(std::string_view name, Arithmetic arithmetic) {
  for (const auto& device : devices) {
    if (name.find(device.name) == name.npos) continue;
    const double peak = arithmetic == Arithmetic::fp32   ? device.fp32
                        : arithmetic == Arithmetic::tf32 ? device.tf32
                                                         : device.half;
    return 1e12 * peak;
  }
  return {};
}

} // namespace fvlm::device
