// container.h: a container file that is read through the engine's callback, and its first video stream.
#pragma once
#include "handles.h"

#include <optional>

namespace fvlm::plugins {

// The name of FFmpeg's demuxer for a file extension; nullptr if the extension is not on the allow-list.
const char* find_demuxer(const char* format);

// Throws if a frame of this size has too many pixels.
void check_frame_size(int width, int height, int64_t max_pixels);

class Container {
 public:
  // With `details` the first packets are read too, for stream parameters that the header lacks but decoding needs.
  Container(const fvlm_video_query& query, const fvlm_video_file& file, bool details);
  ~Container();
  Container(const Container&) = delete;
  Container& operator=(const Container&) = delete;

  AVStream& stream() const { return *stream_; }
  double seconds() const;    // the duration that the file declares
  int quarter_turns() const; // 0 to 3, clockwise: the rotation that makes frames upright

  // A pts (presentation timestamp) is in units of the stream's time base; seconds start at the first frame.
  void set_first_pts(int64_t pts) { first_pts_ = pts; }
  int64_t pts(double seconds) const;
  double time(int64_t pts) const;

  // Reads the next packet of the stream; returns false at the end of the file.
  bool read(AVPacket& packet);
  // The timestamp of the last keyframe at or before this one, in decoding order; nullopt if the file has no index.
  std::optional<int64_t> keyframe_before(int64_t pts) const;
  bool seek_to_keyframe(int64_t key);

  // Throws if the engine has cancelled the call, or reading the file has failed.
  void check_cancelled() const;

 private:
  void open(const fvlm_video_query& query, bool details);
  void read_stream_info(int64_t max_pixels);
  void close();
  static int read_bytes(void* self, uint8_t* into, int count);
  static int64_t seek(void* self, int64_t offset, int whence);

  const fvlm_video_file& file_;
  uint64_t offset_ = 0;
  bool read_failed_ = false;
  AVIOContext* input_ = nullptr;
  AVFormatContext* format_ = nullptr;
  AVStream* stream_ = nullptr;
  int64_t first_pts_ = 0; // pts of the first frame
};

} // namespace fvlm::plugins
