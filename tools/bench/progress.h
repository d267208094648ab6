// The progress of a measurement.
#pragma once
#include <cstdint>
#include <functional>
#include <string>

namespace fvlm::bench {

using Progress = std::function<void(const std::string& measured, int64_t done, int64_t total)>;

} // namespace fvlm::bench
