// How the frames of packs reach the memory that recordings read: copied while the pack before is still being computed,
// into a buffer of their own, and moved on within the device when their turn has come.
#pragma once
#include "device/runtime.h"

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <memory>
#include <vector>

namespace fvlm::train {

class Arrivals {
 public:
  // `most`: [frames, 3, H, W] of the largest pack. Where copies do not overlap the host waits for each.
  Arrivals(device::Runtime& runtime, at::Device device, std::vector<int64_t> most, bool overlaps)
      : runtime_(runtime), device_(device), most_(std::move(most)), overlaps_(overlaps) {}
  ~Arrivals();
  Arrivals(const Arrivals&) = delete;
  Arrivals& operator=(const Arrivals&) = delete;

  bool overlap() const { return overlaps_; }
  // The first so many slots of those that all packs have in common.
  at::Tensor slots(int64_t count);
  // Frames of the host, which `memory` keeps, into the first of `slots`; the others become zero. What is enqueued from
  // here on finds them there. At most one pack's memory is kept.
  void bring(const at::Tensor& frames, std::shared_ptr<std::byte> memory, const at::Tensor& slots);

 private:
  at::Tensor made() const;

  device::Runtime& runtime_;
  at::Device device_;
  std::vector<int64_t> most_;
  bool overlaps_;
  at::Tensor slots_, waiting_;           // what recordings read; what copies write
  std::shared_ptr<device::Mark> free_;   // from here on waiting_ may be written
  std::shared_ptr<device::Mark> copied_; // and from here on memory_ may go
  std::shared_ptr<std::byte> memory_;
};

} // namespace fvlm::train
