#include "train/tensor_memory.h"

#include <ATen/core/Tensor.h>
#include <c10/core/CPUAllocator.h>
#include <c10/util/Exception.h>

#include <atomic>
#include <cstdlib>

namespace fvlm::train {
namespace {

constexpr size_t alignment = 64; // of LibTorch's own

// LibTorch's libraries want memory whose context is its address; so its size stands before it.
class Watched : public c10::Allocator {
 public:
  c10::Allocator* below = nullptr; // whose turn it was before
  std::atomic<int64_t> live = 0, peak = 0, limit = 0;

  c10::DataPtr allocate(size_t bytes) override {
    if (bytes == 0) return {nullptr, nullptr, &let_go, at::kCPU};
    const auto size = static_cast<int64_t>(bytes);
    const int64_t now = live += size;
    const int64_t most = limit;
    void* memory = nullptr;
    if ((most > 0 && now > most) || posix_memalign(&memory, alignment, bytes + alignment) != 0) {
      live -= size;
      TORCH_CHECK_WITH(OutOfMemoryError, false, "can't allocate memory: ", size, " bytes, with ", now - size, " held");
    }
    for (int64_t before = peak; before < now && !peak.compare_exchange_weak(before, now);) {
    }
    *static_cast<int64_t*>(memory) = size;
    void* data = static_cast<std::byte*>(memory) + alignment;
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
  void* memory = static_cast<std::byte*>(data) - alignment;
  watched().live -= *static_cast<int64_t*>(memory);
  std::free(memory);
}

} // namespace

TensorMemory::TensorMemory(int64_t limit) {
  Watched& watch = watched();
  watch.below = c10::GetCPUAllocator();
  watch.limit = limit;
  watch.peak = watch.live.load();
  c10::SetCPUAllocator(&watch);
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
