// Video trials: small files of known pictures, and what a plugin makes of them.
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

// By default twelve frames of an even grey, four a second.
struct VideoCase {
  std::string format; // "mp4", "y4m"
  std::string bytes;
  VideoPattern pattern = {};
  std::vector<double> times = {0, 0.3, 1, 1, 2.6};
  int64_t most_pixels = 1 << 20;

  // What the file's callbacks do besides.
  int fail_at = -1;   // the read that fails
  int stop_at = -1;   // the question that is answered with a stop
  int refuse_at = -1; // the picture that is refused
};

VideoCase y4m_case(const VideoPattern& pattern);

// One a format that the plugin may know.
std::vector<VideoCase> video_cases();

struct Shown {
  int64_t width = 0, height = 0;
  std::vector<uint8_t> rgb;
  bool operator==(const Shown&) const = default;
  // Which of the frames of an even grey it is, by the mean of its pixels; -1: none of them, or not even.
  int frame(const VideoPattern& pattern) const;
  // "" where it is this frame of the pattern, pixel by pixel.
  std::string difference(const VideoPattern& pattern, int frame) const;
};

struct Watched {
  fvlm_status status = 0;
  std::string error;
  std::vector<Shown> pictures;
  std::string misuse; // of the callbacks, or a picture that makes no sense; "" for none
  double seconds = 0;
  int64_t width = 0, height = 0;                // of probe
  int reads = 0, questions = 0, after_stop = 0; // pictures that came after an answer to stop
  uint64_t bytes_read = 0;
};

Watched probe(Context& context, const VideoCase& video, fvlm_instance* instance = nullptr);
Watched decode(Context& context, const VideoCase& video, fvlm_instance* instance = nullptr);
fvlm_support video_supports(Context& context, const VideoCase& video);
Trial video_trial(const VideoCase& video);

} // namespace fvlm::check
