#include "ops/dry_run.h"

#include "device/runtime.h"

#include <c10/core/Allocator.h>

#include <algorithm>
#include <deque>
#include <optional>

namespace fvlm::ops {
namespace {

std::optional<at::Device> target; // of the dry run; none: there is none

// Gives addresses that nothing lies at, and counts. LibTorch requires of an allocator that it outlives every tensor.
class Counter : public c10::Allocator {
 public:
  struct Part {
    std::string name;
    int64_t live = 0;
  };
  int64_t granularity = 1; // bytes: an allocation takes a multiple of it
  int64_t live = 0, peak = 0;
  std::deque<Part> parts{1};

  c10::DataPtr allocate(size_t bytes) override {
    if (bytes == 0) return {nullptr, nullptr, &release, at::kMeta};
    const int64_t taken = (static_cast<int64_t>(bytes) + granularity - 1) / granularity * granularity;
    auto* block = new Block{taken, &parts.back()};
    live += taken;
    block->part->live += taken;
    peak = std::max(peak, live);
    auto* address = reinterpret_cast<void*>(next_); // NOLINT(performance-no-int-to-ptr): it is never read
    next_ += static_cast<uintptr_t>((taken / alignment + 1) * alignment);
    return {address, block, &release, at::kMeta};
  }
  void copy_data(void*, const void*, size_t) const override {}

 private:
  static constexpr int64_t alignment = 512;
  struct Block {
    int64_t bytes;
    Part* part;
  };
  static void release(void* block);
  uintptr_t next_ = uintptr_t{1} << 44;
};

Counter& counter() {
  static auto* one = new Counter;
  return *one;
}

void Counter::release(void* memory) {
  const auto* block = static_cast<Block*>(memory);
  if (!block) return;
  counter().live -= block->bytes;
  block->part->live -= block->bytes;
  delete block;
}

} // namespace

at::Device real_device(at::Device device) {
  return device.is_meta() && target ? *target : device;
}

bool is_dry_run(at::Device device) {
  return device.is_meta() && target;
}

DryRun::DryRun(at::Device device)
    : allocator_before_(c10::GetAllocator(at::kMeta)), runtime_before_(device::runtime()) {
  // As LibTorch's allocator of each device rounds, and malloc.
  counter().granularity = device.is_cuda() ? 512 : 16;
  target = device;
  device::use_runtime(nullptr);
  c10::SetAllocator(at::kMeta, &counter());
  reset_peak();
}

DryRun::~DryRun() {
  c10::SetAllocator(at::kMeta, allocator_before_);
  device::use_runtime(runtime_before_);
  target.reset();
}

int64_t DryRun::live() const {
  return counter().live;
}

int64_t DryRun::peak() const {
  return counter().peak;
}

void DryRun::reset_peak() {
  counter().peak = counter().live;
}

void DryRun::begin_parts() {
  for (auto& part : counter().parts) part.name.clear();
  counter().parts.emplace_back();
}

void DryRun::end_part(const std::string& name) {
  counter().parts.back().name = name;
  counter().parts.emplace_back();
}

std::map<std::string, int64_t> DryRun::live_parts() const {
  std::map<std::string, int64_t> live;
  for (const auto& part : counter().parts)
    if (!part.name.empty()) live[part.name] += part.live;
  return live;
}

} // namespace fvlm::ops
