// Video trials: small files of known pictures, and what a plugin makes of them.
#pragma once
#include "check/context.h"

#include <fvlm/video.h>

namespace fvlm::check {

// Twelve frames of an even grey, four a second, 32 x 32; frame n is 20 + 16n bright.
struct VideoCase {
  std::string format; // "mp4", "y4m"
  std::string bytes;
  std::vector<double> times = {0, 0.3, 1, 1, 2.6};
  int64_t most_pixels = 1 << 20;

  // What the file's callbacks do besides.
  int fail_at = -1;   // the read that fails
  int stop_at = -1;   // the question that is answered with a stop
  int refuse_at = -1; // the picture that is refused
};

constexpr int64_t video_side = 32;
constexpr double video_seconds = 3, video_frame_seconds = 0.25;

// One a format that the plugin may know.
std::vector<VideoCase> video_cases();

struct Shown {
  int64_t width = 0, height = 0;
  std::vector<uint8_t> rgb;
  bool operator==(const Shown&) const = default;
  // Which of the frames it is, by the mean of its pixels; -1: none of them, or not even.
  int frame() const;
};

struct Watched {
  fvlm_status status = 0;
  std::string error;
  std::vector<Shown> pictures;
  std::string misuse; // of the callbacks, or a picture that makes no sense; "" for none
  double seconds = 0;
  int64_t width = 0, height = 0; // of probe
  int reads = 0, questions = 0;
};

Watched probe(Context& context, const VideoCase& video);
Watched decode(Context& context, const VideoCase& video, fvlm_instance* instance = nullptr);
fvlm_support video_supports(Context& context, const VideoCase& video);
Trial video_trial(const VideoCase& video);

} // namespace fvlm::check
