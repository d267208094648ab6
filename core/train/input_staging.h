// Copies the frames of packs to the device: into a staging buffer while the previous pack is still being computed, and
// from there, on the device, into the buffer whose address captured graphs read.
#pragma once
#include "device/runtime.h"

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <memory>
#include <vector>

namespace fvlm::train {

class InputStaging {
 public:
  // `max_shape`: [frames, 3, H, W] of the largest pack. Without `overlaps` the host waits for each copy.
  InputStaging(device::Runtime& runtime, at::Device device, std::vector<int64_t> max_shape, bool overlaps)
      : runtime_(runtime), device_(device), max_shape_(std::move(max_shape)), overlaps_(overlaps) {}
  ~InputStaging();
  InputStaging(const InputStaging&) = delete;
  InputStaging& operator=(const InputStaging&) = delete;

  bool overlaps() const { return overlaps_; }
  // The first `count` frame slots of the buffer that all packs share.
  at::Tensor slots(int64_t count);
  // Copies `frames`, which lie in the host memory `memory`, into the first of `slots` and fills the others with zeros;
  // work that is enqueued afterwards sees them. Keeps the memory of at most one pack alive.
  void stage(const at::Tensor& frames, std::shared_ptr<std::byte> memory, const at::Tensor& slots);

 private:
  at::Tensor allocate() const;

  device::Runtime& runtime_;
  at::Device device_;
  std::vector<int64_t> max_shape_;
  bool overlaps_;
  at::Tensor slots_, incoming_;                 // what captured graphs read; what copies write
  std::shared_ptr<device::Mark> incoming_free_; // incoming_ may be written after this
  std::shared_ptr<device::Mark> copied_;        // host_memory_ may be released after this
  std::shared_ptr<std::byte> host_memory_;
};

} // namespace fvlm::train
