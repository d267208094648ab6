// The images and videos that a sample's JSON names, or has in it: paths, data: URLs, bytes.
#pragma once
#include "data/samples/parts.h"
#include "data/shards/shard.h"

namespace fvlm {

// Adds them to the members of the sample, as `image`, `images`, `video`, `videos`, `file_name`, `file_names` or the
// contents of messages say: "jpg", or "000.jpg", "001.jpg" of several; "mp4"; "gif". Throws Error(data) for files that
// are not there, for addresses on the network, and for more than one video.
void add_named_media(const Shard& shard, const Parts& parts, ShardSample& sample);

} // namespace fvlm
