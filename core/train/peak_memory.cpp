#include "train/peak_memory.h"

#include <c10/core/CachingDeviceAllocator.h>

#include <malloc.h>

namespace fvlm::train {
namespace {

constexpr auto all = static_cast<size_t>(c10::CachingAllocator::StatType::AGGREGATE);

c10::DeviceAllocator& allocator_of(c10::Device device) {
  return *c10::getDeviceAllocator(device.type());
}

} // namespace

int64_t held_on(c10::Device device) {
  return allocator_of(device).getDeviceStats(device.index()).reserved_bytes[all].current;
}

double fragmentation_on(c10::Device device) {
  const auto stats = allocator_of(device).getDeviceStats(device.index());
  const auto reserved = stats.reserved_bytes[all].current;
  if (reserved == 0) return 0;
  return static_cast<double>(stats.inactive_split_bytes[all].current) / static_cast<double>(reserved);
}

PeakMemory::PeakMemory(c10::Device device, int64_t limit) : device_(device) {
  if (device.is_cpu()) on_host_.emplace(limit);
}

void PeakMemory::begin(int64_t limit) {
  if (!on_host_) return allocator_of(device_).resetPeakStats(device_.index());
  on_host_->limit_to(limit);
  on_host_->reset_peak();
}

int64_t PeakMemory::peak() const {
  if (on_host_) return on_host_->peak();
  return allocator_of(device_).getDeviceStats(device_.index()).allocated_bytes[all].peak;
}

int64_t PeakMemory::held() const {
  if (on_host_) return on_host_->live();
  return held_on(device_);
}

void PeakMemory::give_back() {
  if (!on_host_) return allocator_of(device_).emptyCache();
  malloc_trim(0);
}

} // namespace fvlm::train
