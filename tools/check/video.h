// Video trials: small files of known pictures, and how a plugin decodes them.
#pragma once
#include "check/context.h"

#include <fvlm/video.h>

namespace fvlm::check {

// What a y4m file shows: frames of blocks of 4 x 4 pixels in eight colours, drawn by the seed. Seed 0: an even grey,
// frame n is 20 + 16n bright.
struct VideoPattern {
  int64_t width = 32, height = 32;
  int frames = 12;
  int rate = 4, per = 1; // `rate` frames in `per` seconds
  uint64_t seed = 0;

  double frame_seconds() const { return static_cast<double>(per) / rate; }
  double seconds() const { return frames * frame_seconds(); }
};

// By default twelve uniformly grey frames, four a second.
struct VideoCase {
  std::string format; // "mp4", "y4m"
  std::string bytes;
  VideoPattern pattern = {};
  std::vector<double> times = {0, 0.3, 1, 1, 2.6};
  int64_t most_pixels = 1 << 20;

  // Faults of the file's callbacks; -1: none.
  int fail_at = -1;   // index of the read() that fails
  int stop_at = -1;   // index of the stop() call from which on decoding is cancelled
  int refuse_at = -1; // index of the picture whose callback returns an error
};

VideoCase y4m_case(const VideoPattern& pattern);

// One for each format that plugins may support.
std::vector<VideoCase> video_cases();

struct DecodedFrame {
  int64_t width = 0, height = 0;
  std::vector<uint8_t> rgb;
  bool operator==(const DecodedFrame&) const = default;
  // Index of the uniformly grey frame that it shows, from the mean of its pixels; -1: none of them, or not uniform.
  int frame(const VideoPattern& pattern) const;
  // "" if it equals this frame of the pattern, pixel by pixel.
  std::string difference(const VideoPattern& pattern, int frame) const;
};

struct VideoResult {
  fvlm_status status = 0;
  std::string error;
  std::vector<DecodedFrame> pictures;
  std::string misuse; // wrong use of the callbacks, or an invalid picture; "" for none
  double seconds = 0;
  int64_t width = 0, height = 0;                    // of probe
  int reads = 0, cancel_checks = 0, after_stop = 0; // after_stop: pictures delivered after cancellation
  uint64_t bytes_read = 0;
};

VideoResult probe(Context& context, const VideoCase& video, fvlm_instance* instance = nullptr);
VideoResult decode(Context& context, const VideoCase& video, fvlm_instance* instance = nullptr);
fvlm_support video_supports(Context& context, const VideoCase& video);
Trial video_trial(const VideoCase& video);

} // namespace fvlm::check
