// Counts the frames that a vision encoder reads.
#pragma once
#include "ops/call_observer.h"

#include <utility>

namespace fvlm::model {

// Of this thread's passes, while it exists. Frames are those whose patches are embedded; the encoder's patches have a
// size that no other linear layer has as input.
class EncodedFrames {
 public:
  EncodedFrames(int64_t image_size, int64_t patch_size)
      : inner_(3 * patch_size * patch_size), patches_((image_size / patch_size) * (image_size / patch_size)) {
    ops::use_call_observer(&observer_);
  }
  EncodedFrames(const EncodedFrames&) = delete;
  EncodedFrames& operator=(const EncodedFrames&) = delete;
  ~EncodedFrames() { ops::use_call_observer(nullptr); }

  // Since the last call.
  int64_t take() { return std::exchange(rows_, 0) / patches_; }

 private:
  void count(std::string_view operation, const ops::CalledQuery& called) {
    const auto* query = std::get_if<fvlm_kernels_query>(&called);
    if (operation == "linear forward" && query->inner == inner_) rows_ += query->rows;
  }

  int64_t inner_, patches_, rows_ = 0;
  ops::CallObserver observer_{
      [] {}, [this](std::string_view operation, const ops::CalledQuery& query, double) { count(operation, query); }};
};

} // namespace fvlm::model
