// frame_decoder.h: decodes the frames of a stream in order, and converts them to upright RGB.
#pragma once
#include "container.h"

#include <vector>

namespace fvlm::plugins {

class FrameDecoder {
 public:
  FrameDecoder(Container& container, int64_t max_pixels);

  // Decodes up to the frame that is displayed at this pts, which becomes the current one; the frame after it has then
  // been decoded too. The pts of successive calls ascend.
  void advance_to(int64_t pts);
  const AVFrame& current() const { return *current_; }

  // Decodes the next frame in display order; returns false after the last one.
  bool next();
  int64_t pts() const { return next_->best_effort_timestamp; } // pts of the next frame
  bool at_end() const { return !has_next_; }
  int64_t end() const { return end_; } // end of the last decoded frame, as a pts

 private:
  void skip_to_keyframe(int64_t pts);

  Container& container_;
  int64_t max_pixels_;
  Codec codec_;
  Packet packet_;
  Frame current_, next_;
  bool draining_ = false, has_next_ = true;
  int64_t end_ = 0;
};

// Converts frames to RGB and rotates them as the file declares.
class RgbConverter {
 public:
  explicit RgbConverter(int quarter_turns) : quarter_turns_(quarter_turns) {}
  ~RgbConverter() { sws_freeContext(scaler_); }
  RgbConverter(const RgbConverter&) = delete;
  RgbConverter& operator=(const RgbConverter&) = delete;

  // The result points into memory that this object owns.
  fvlm_video_picture convert(const AVFrame& frame);

 private:
  int quarter_turns_;
  SwsContext* scaler_ = nullptr;
  std::vector<uint8_t> flat_, turned_;
};

} // namespace fvlm::plugins
