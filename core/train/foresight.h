// Frames that a tower which does not learn encodes while the pack before is still being learnt, into one of two
// memories by turns: the passes over either read what was encoded into it.
#pragma once
#include "device/runtime.h"
#include "model/vlm.h"
#include "train/recorder.h"

#include <array>
#include <map>
#include <memory>
#include <utility>
#include <vector>

namespace fvlm::train {

class Foresight {
 public:
  // `most`: [frames, 3, H, W] of the largest pack. The model and the operations outlive it, and the tower stays as it
  // is.
  Foresight(device::Runtime& runtime, const model::Vlm& vlm, ops::Operations& operations, std::vector<int64_t> most,
            bool records);
  ~Foresight();
  Foresight(const Foresight&) = delete;
  Foresight& operator=(const Foresight&) = delete;

  // Whose turn comes with the next encode(): 0 or 1.
  size_t turn() const { return turn_; }
  // Enqueues it for frames that lie in the same place each time, `used` of them, when they are there. What is enqueued
  // from here on finds keys and values. The mark behind which the frames may be overwritten.
  std::shared_ptr<device::Mark> encode(const at::Tensor& frames, int64_t used, std::shared_ptr<device::Mark> there);
  // Keys and values of so many frames.
  model::Vlm::Encoded of(size_t turn, int64_t frames) const;
  // All who read what was encoded at that turn are enqueued: it may be overwritten behind them.
  void have_read(size_t turn);
  // Launches of the last encode(), where they were recorded.
  int64_t kernels() const { return kernels_; }

 private:
  struct Memory {
    model::Vlm::Encoded layers;
    std::shared_ptr<device::Mark> free;                     // from here on it may be written
    std::map<std::pair<int64_t, bool>, Recorder> recorders; // by frames, and whether all are used
  };

  device::Runtime& runtime_;
  const model::Vlm& vlm_;
  ops::Operations& ops_;
  bool records_;
  int64_t tokens_; // of a frame
  std::array<Memory, 2> memories_;
  std::shared_ptr<device::Mark> done_; // the last of it
  size_t turn_ = 0;
  int64_t kernels_ = 0;
};

} // namespace fvlm::train
