// InputStaging: how packs reach the memory that passes read. On a GPU that memory is fixed, one place for each set of
// shapes, so that captured passes find their inputs there: small tensors travel in one copy, frames through a buffer of
// their own, so that they are copied while the previous pack is still being computed.
#pragma once
#include "device/runtime.h"
#include "objective/objective.h"
#include "train/pass_builder.h"

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <memory>
#include <vector>

namespace fvlm::train {

// The fixed memory of packs of the same shapes.
struct StagedInputs {
  objective::PassInputs inputs;
  at::Tensor bytes; // that all tensors but the frames are slices of; undefined: nothing was staged yet
};

// What tells the shapes of passes apart.
std::vector<int64_t> shape_key(objective::PassInputs& inputs);

// On the device, in memory of its own.
objective::PassInputs on_device(BuiltPass built, at::Device device);

class InputStaging {
 public:
  // `max_frames`: [frames, 3, H, W] of the largest pack. Where copies do not overlap, the host waits for each.
  InputStaging(device::Runtime& runtime, at::Device device, std::vector<int64_t> max_frames, bool overlap)
      : runtime_(runtime), device_(device), max_frames_(std::move(max_frames)), overlap_(overlap) {}
  ~InputStaging();
  InputStaging(const InputStaging&) = delete;
  InputStaging& operator=(const InputStaging&) = delete;

  bool overlap() const { return overlap_; }
  // Puts the pack where `place`, of the same shapes or new, lies. Work that is enqueued from here on finds it there.
  // `memory` holds the pack's frames, and is kept until they are copied; at most one pack's memory is kept.
  void stage(BuiltPass built, std::shared_ptr<std::byte> memory, StagedInputs& place);

 private:
  at::Tensor frame_slots(int64_t count);
  void copy_frames(const feed::HostFrames& frames, std::shared_ptr<std::byte> memory, const at::Tensor& slots);

  device::Runtime& runtime_;
  at::Device device_;
  std::vector<int64_t> max_frames_;
  bool overlap_;
  at::Tensor slots_, incoming_;           // what passes read; what copies write
  at::Tensor table_;                      // the values of bytes, on the device
  std::shared_ptr<device::Event> free_;   // from here on incoming_ may be written
  std::shared_ptr<device::Event> copied_; // from here on memory_ may be released
  std::shared_ptr<std::byte> memory_;
};

} // namespace fvlm::train
