// What the GPU did while something ran, as CUPTI tells it.
#pragma once
#include "device/runtime.h"

namespace fvlm::device {

// `work` ends when the device is done with it. One at a time.
std::vector<Activity> watch_activities(const std::function<void()>& work);
uint64_t activity_clock();

} // namespace fvlm::device
