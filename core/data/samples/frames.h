// Finds the members of a sample that are its frames, by their names.
#pragma once
#include "data/samples/sample.h"
#include "data/shards/shard.h"

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace fvlm {

struct FoundFrames {
  Media media;                // only kind and members; numbered frames are in ascending order
  bool still = false;         // a single image without a frame number
  bool is_video = false;      // numbered frames that the text calls a <video>, see FramePreparation::has_own_videos
  std::optional<int64_t> gap; // the first frame number that is missing
};

// The first image of the sample in an unsupported format, such as TIFF; null where there is none.
const Member* unread_image(const ShardSample& sample);
// The first member with a further dot in its name that is no numbered frame: "photo.jpg" of the file my.photo.jpg.
const Member* dotted_member(const ShardSample& sample);
inline constexpr const char* convert_images =
    "convert it to JPEG or PNG, for example by ImageMagick's `mogrify -format png FILE`";

// Throws Error(data) for more than one of: an image, numbered frames, a video or GIF, an array.
FoundFrames find_frames(const ShardSample& sample);

// The file of an image. Throws Error(data) where it is too large.
std::vector<std::byte> read_image(const Shard& shard, const Member& member);

// Indices of at most `most` of `count` items, spread evenly from the first to the last.
std::vector<int64_t> evenly_spaced(int64_t count, int64_t most);

} // namespace fvlm
