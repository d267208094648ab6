// A container file, read through the engine's callback, and its one video stream.
#pragma once
#include "handles.h"

#include <optional>

namespace fvlm::plugins {

// What names of such files end in -> FFmpeg's demuxer; nullptr: not one of those that are let in.
const char* demuxer_of(const char* format);

// Throws for pictures that are too large.
void require_decent_size(int width, int height, int64_t most_pixels);

class Container {
 public:
  // With `details` what only the first packets tell is read, too: what decoding wants.
  Container(const fvlm_video_query& query, const fvlm_video_file& file, bool details);
  ~Container();
  Container(const Container&) = delete;
  Container& operator=(const Container&) = delete;

  AVStream& stream() const { return *stream_; }
  double seconds() const;    // as the file says
  int quarter_turns() const; // clockwise, 0 .. 3, that make pictures upright

  // Stamps are the stream's own time; seconds begin at the first picture.
  void set_first(int64_t stamp) { first_ = stamp; }
  int64_t stamp(double seconds) const;
  double time(int64_t stamp) const;

  // The next packet of the stream; false at the end of the file.
  bool read(AVPacket& packet);
  // The stamp of the last key picture at or before this one, in the order of decoding; nothing: the file does not say.
  std::optional<int64_t> key_before(int64_t stamp) const;
  bool go_to_key(int64_t key);

  // Throws where the engine wants to stop, or could not read.
  void go_on() const;

 private:
  void open(const fvlm_video_query& query, bool details);
  void find_details(int64_t most_pixels);
  void close();
  static int read_bytes(void* self, uint8_t* into, int count);
  static int64_t seek(void* self, int64_t offset, int whence);

  const fvlm_video_file& file_;
  uint64_t offset_ = 0;
  bool read_failed_ = false;
  AVIOContext* input_ = nullptr;
  AVFormatContext* format_ = nullptr;
  AVStream* stream_ = nullptr;
  int64_t first_ = 0; // stamp of the first picture
};

} // namespace fvlm::plugins
