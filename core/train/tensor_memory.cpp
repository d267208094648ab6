#include "train/tensor_memory.h"

#include "train/memory.h"

#include <ATen/core/Tensor.h>
#include <c10/core/CPUAllocator.h>
#include <c10/util/Exception.h>

#include <atomic>
#include <cstdlib>
#include <malloc.h>

namespace fvlm::train {
namespace {

constexpr size_t alignment = 64;           // of LibTorch's own
constexpr int64_t worth_asking = 16 << 20; // bytes: the machine is asked whether it has them
constexpr int64_t left_alone = 64 << 20;   // bytes that others may need meanwhile

bool machine_has(int64_t bytes) {
  const auto there = [] { return static_cast<int64_t>(available_memory()) - left_alone; };
  if (bytes < worth_asking || bytes <= there()) return true;
  malloc_trim(0); // freed memory that is kept may be what is missing
  return bytes <= there();
}

// LibTorch's libraries keep memory for longer than anybody watches, and give back through one allocator what they had
// from another. So a block looks like LibTorch's own, which free() takes, and malloc knows its size.
class Watched : public c10::Allocator {
 public:
  c10::Allocator* below = nullptr; // whose turn it was before
  std::atomic<int64_t> live = 0, peak = 0, limit = 0;

  c10::DataPtr allocate(size_t bytes) override {
    if (bytes == 0) return {nullptr, nullptr, &let_go, at::kCPU};
    const auto size = static_cast<int64_t>(bytes);
    const int64_t most = limit;
    void* data = nullptr;
    const auto refuse = [&] {
      TORCH_CHECK_WITH(OutOfMemoryError, false, "can't allocate memory: ", size, " bytes, with ", live.load(), " held");
    };
    if (most > 0 && (live + size > most || !machine_has(size))) refuse();
    if (posix_memalign(&data, alignment, bytes) != 0) refuse();
    const int64_t now = live += static_cast<int64_t>(malloc_usable_size(data));
    if (most > 0 && now > most) { // others asked at the same time, or malloc rounded up
      let_go(data);
      refuse();
    }
    for (int64_t before = peak; before < now && !peak.compare_exchange_weak(before, now);) {
    }
    return {data, data, &let_go, at::kCPU};
  }

  c10::DeleterFnPtr raw_deleter() const override { return &let_go; }
  void copy_data(void* to, const void* from, size_t count) const override { default_copy_data(to, from, count); }

 private:
  static void let_go(void* data);
};

// As LibTorch wants it, it outlives every tensor.
Watched& watched() {
  static auto* one = new Watched;
  return *one;
}

void Watched::let_go(void* data) {
  if (!data) return;
  watched().live -= static_cast<int64_t>(malloc_usable_size(data));
  std::free(data);
}

} // namespace

TensorMemory::TensorMemory(int64_t limit) {
  Watched& watch = watched();
  watch.below = c10::GetCPUAllocator();
  watch.limit = limit;
  watch.peak = watch.live.load();
  c10::SetCPUAllocator(&watch);
}

void TensorMemory::limit_to(int64_t limit) {
  watched().limit = limit;
}

TensorMemory::~TensorMemory() {
  c10::SetCPUAllocator(watched().below);
}

int64_t TensorMemory::live() const {
  return watched().live;
}

int64_t TensorMemory::peak() const {
  return watched().peak;
}

void TensorMemory::reset_peak() {
  watched().peak = watched().live.load();
}

} // namespace fvlm::train
