#include "train/foresight.h"

#include <c10/util/Exception.h>

#include <utility>

namespace fvlm::train {

Foresight::Foresight(device::Runtime& runtime, const model::Vlm& vlm, ops::Operations& operations,
                     std::vector<int64_t> most, bool records)
    : runtime_(runtime), vlm_(vlm), ops_(operations), records_(records),
      tokens_(vlm.tower().tokens_per_frame(most[2], most[3])) {
  for (Memory& memory : memories_) memory.layers = vlm_.room_for_encoded(ops_, most[0] * tokens_);
  // Others may have had that memory, and the model's weights are there.
  for (Memory& memory : memories_) memory.free = runtime_.mark();
}

// Nobody gets memory that is still written.
Foresight::~Foresight() {
  if (!done_) return;
  try {
    done_->wait();
  } catch (const c10::Error&) { // the device's, which tells it again with whatever comes next
  }
}

model::Vlm::Encoded Foresight::of(size_t turn, int64_t frames) const {
  model::Vlm::Encoded layers;
  for (const at::Tensor& layer : memories_[turn].layers) layers.push_back(layer.narrow(0, 0, frames * tokens_));
  return layers;
}

std::shared_ptr<device::Mark> Foresight::encode(const at::Tensor& frames, int64_t used,
                                                std::shared_ptr<device::Mark> there) {
  Memory& memory = memories_[turn_];
  const bool all = used == frames.size(0);
  Recorder& recorder =
      memory.recorders.try_emplace({frames.size(0), all}, "the vision tower of the next pack", records_).first->second;
  std::vector<std::shared_ptr<device::Mark>> after{std::move(there), memory.free};
  // What plugins measure at first they measure alone.
  if (!recorder.is_recorded()) after.push_back(runtime_.mark());
  const model::Vlm::Encoded into = of(turn_, frames.size(0));
  done_ =
      runtime_.ahead(after, [&] { recorder.run([this, frames, all, into] { vlm_.encode(ops_, frames, all, into); }); });
  runtime_.follow(*done_);
  kernels_ = recorder.kernels();
  turn_ = 1 - turn_;
  return done_;
}

void Foresight::have_read(size_t turn) {
  memories_[turn].free = runtime_.mark();
}

} // namespace fvlm::train
