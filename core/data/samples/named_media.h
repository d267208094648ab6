// The images and videos that a sample's JSON names, or has in it: paths, data: URLs, bytes.
#pragma once
#include "data/samples/parts.h"
#include "data/shards/shard.h"

#include <span>
#include <string>

namespace fvlm {

// Adds them to the members of the sample, as `image`, `images`, `video`, `videos`, `file_name`, `file_names` or the
// contents of messages say: "jpg", or "000.jpg", "001.jpg" of several; "mp4"; "gif". Throws Error(data) for files that
// are not there, for addresses on the network, and for more than one video.
void add_named_media(const Shard& shard, const Parts& parts, ShardSample& sample);

// A value of the JSON that is a picture or a video, several of them, or turns that have some among their contents.
struct NamedValue {
  const nlohmann::json* value = nullptr;
  std::string pointer; // to it (RFC 6901)
  bool is_video = false;
};
// The same of these values alone.
void add_named_media(const Shard& shard, const Parts& parts, std::span<const NamedValue> values, ShardSample& sample);

} // namespace fvlm
