// Profiles the GPU with CUPTI.
#pragma once
#include "device/runtime.h"

namespace fvlm::device {

// `work` has to synchronize with the device at its end. Not reentrant.
std::vector<Activity> watch_activities(const std::function<void()>& work);
uint64_t activity_clock();

} // namespace fvlm::device
