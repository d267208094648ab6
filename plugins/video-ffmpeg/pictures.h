// The pictures of a stream, decoded one after the other, and made upright RGB.
#pragma once
#include "container.h"

#include <vector>

namespace fvlm::plugins {

class Pictures {
 public:
  Pictures(Container& container, int64_t most_pixels);

  // Decodes on until the picture is found that is shown at this stamp; stamps ascend. The picture that follows it has
  // then been decoded, too.
  void show(int64_t stamp);
  const AVFrame& shown() const { return *shown_; }

  // The next picture in the order of showing becomes the coming one; false behind the last one.
  bool next();
  int64_t stamp() const { return coming_->best_effort_timestamp; } // when the coming picture begins to show
  bool at_end() const { return !more_; }
  int64_t end() const { return end_; } // when the last picture that came out ends to show

 private:
  void skip(int64_t stamp);

  Container& container_;
  int64_t most_pixels_;
  Codec codec_;
  Packet packet_;
  Frame shown_, coming_;
  bool draining_ = false, more_ = true;
  int64_t end_ = 0;
};

// Pictures as the engine wants them: RGB, turned as the file says.
class Upright {
 public:
  explicit Upright(int quarter_turns) : quarter_turns_(quarter_turns) {}
  ~Upright() { sws_freeContext(scaler_); }
  Upright(const Upright&) = delete;
  Upright& operator=(const Upright&) = delete;

  // Points into memory of this object's.
  fvlm_video_picture convert(const AVFrame& frame);

 private:
  int quarter_turns_;
  SwsContext* scaler_ = nullptr;
  std::vector<uint8_t> flat_, turned_;
};

} // namespace fvlm::plugins
