#include "data/media/video.h"

#include "base/error.h"
#include "data/samples/error_context.h"
#include "data/samples/parts.h"
#include "data/samples/sample_reader.h"

namespace fvlm {
void SampleReader::time_video(const Shard& shard, Sample& sample) const {
  const Member& member = sample.media.members[0];
  with_member_context(member, [&] { frames_.require_videos(); });
  const VideoInfo info = with_member_context(member, [&] { return probe_video(video_, *shard.open(member)); });
  with_media_errors([&] {
    if (!(info.seconds > 0) && !info.is_still) broken(place_of(member) + " does not say how long it is");
  });
  sample.media.times = sample_frame_times(info.seconds, mix_.max_frames);
  sample.frames = static_cast<int64_t>(sample.media.times.size());
}

void SampleReader::decode_video(const Shard& shard, const Sample& sample, const TakeFrame& take) const {
  const Member& member = sample.media.members[0];
  with_member_context(member, [&] { frames_.prepare_video(video_, *shard.open(member), sample.media.times, take); });
}

} // namespace fvlm
