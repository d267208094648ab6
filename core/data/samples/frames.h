// Which members of a sample are its frames, by their names.
#pragma once
#include "data/samples/sample.h"

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace fvlm {

// Of a name's ending, without its dot.
bool is_image(std::string ending);

struct FoundFrames {
  Media media;                // the members alone; numbered frames in the order of their numbers
  bool still = false;         // one image without a number
  std::optional<int64_t> gap; // a number that is missing among them
};

// Throws Error(data) where there is more than one of: an image, numbered frames, an mp4, an array.
// Of the sample's images, the first in a format that is not read: gif, webp and the like; null: none.
const Member* unread_image(const ShardSample& sample);
inline constexpr const char* convert_images =
    "convert it to JPEG or PNG before it goes into a shard, for example by "
    "ImageMagick's `mogrify -format png FILE`; a gif's frames to KEY.000.png, "
    "KEY.001.png and so on";

FoundFrames find_frames(const ShardSample& sample);

// Numbers of `most` of `count` things, evenly spread from the first to the last; all of them if they are not more.
std::vector<int64_t> evenly(int64_t count, int64_t most);

} // namespace fvlm
