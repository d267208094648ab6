// write_mp4: frames to the bytes of an mp4 file, by FFmpeg's own MPEG-4 encoder. A library of its own, fvlm_write_mp4,
// for tests and for tools that make data; built where FFmpeg's libraries are (FVLM_HAVE_FFMPEG). Include it as
// "data/media/write_mp4.h" with tests/ as an include folder, which linking fvlm_write_mp4 brings.
#pragma once
#include "data/media/image.h"

#include <span>
#include <string>

namespace fvlm {

struct Mp4Form {
  int frames_per_second = 8;
  int key_every = 12;    // frames
  int between = 0;       // B frames between two others: 0 .. 2
  int quarter_turns = 0; // rotation in degrees, clockwise, as stored in the file
  int quality = 3;       // 1, the best, .. 31
  bool fragmented =
      false; // fragmented, with a header per key frame, so that a truncated file is readable up to the cut
};

// All frames have one size, even in both directions. The same frames give the same bytes. Throws Error(internal).
std::string write_mp4(std::span<const Image> frames, const Mp4Form& form = {});

} // namespace fvlm
