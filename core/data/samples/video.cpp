#include "data/media/video.h"

#include "data/samples/error_context.h"
#include "data/samples/frames.h"
#include "data/samples/parts.h"
#include "data/samples/sample_reader.h"

#include <fmt/format.h>

#include <algorithm>

namespace fvlm {

void SampleReader::time_video(const Shard& shard, Sample& sample) const {
  const Member& member = sample.media.members[0];
  with_member_context(member, [&] { frames_.require_videos(); });
  const VideoInfo info = with_member_context(member, [&] { return probe_video(video_, *shard.open(member)); });
  with_media_errors([&] {
    if (!(info.seconds > 0) && !info.is_still) broken(place_of(member) + " does not say how long it is");
  });
  if (frames_.has_cells()) {
    const ImageSize frame{info.height, info.width};
    const auto all = sample_frame_times(info.seconds, most_video_frames());
    return with_member_context(member, [&] {
      const int64_t fit = frames_.frames_within(mix_.max_frames, frame, std::ssize(all));
      place_video_cells(frame, sample_frame_times(info.seconds, fit), sample);
    });
  }
  sample.media.times = frames_.video_times(info.seconds, mix_.max_frames);
  sample.media.seconds = info.seconds;
  sample.frames = static_cast<int64_t>(sample.media.times.size());
}

// Of a video whose steps have one cell each; more than 18 hours are not looked at, whatever a file says.
int64_t SampleReader::most_video_frames() const {
  constexpr int64_t most = 1 << 16;
  return std::min(mix_.max_frames, most) * frames_.processor()->step_frames;
}

// Of numbered frames, a second apart.
void SampleReader::count_video_pictures(const Shard& shard, Sample& sample) const {
  auto& members = sample.media.members;
  const auto head = read_image(shard, members[0]);
  with_member_context(members[0], [&] {
    frames_.require_videos();
    const ImageSize frame = FramePreparation::size_of(head);
    const int64_t count = std::ssize(members),
                  fit = frames_.has_cells()
                            ? frames_.frames_within(mix_.max_frames, frame, std::min(count, most_video_frames()))
                            : frames_.most_frames(mix_.max_frames);
    std::vector<Member> picked;
    std::vector<double> times;
    for (const int64_t pick : evenly_spaced(count, fit)) {
      picked.push_back(members[static_cast<size_t>(pick)]);
      times.push_back(static_cast<double>(pick));
    }
    members = std::move(picked);
    if (frames_.has_cells()) return place_video_cells(frame, std::move(times), sample);
    sample.frames = std::ssize(members);
    sample.media.seconds = times.back();
    sample.media.times = std::move(times);
  });
}

void SampleReader::place_video_cells(ImageSize frame, std::vector<double> times, Sample& sample) const {
  sample.media.tiles = frames_.video_cells(frame, times);
  sample.media.times = std::move(times);
  sample.frames = 0;
  sample.copies = 1;
  for (const TileGrid& cells : sample.media.tiles) sample.frames += cells.frames();
  sample.exceeds_frames = sample.frames > mix_.max_frames;
  if (sample.exceeds_frames)
    sample.dropped = fmt::format("a video of which one frame has {} cells, more than max_frames = {}", sample.frames,
                                 mix_.max_frames);
}

void SampleReader::decode_video(const Shard& shard, const Sample& sample, const TakeFrame& take) const {
  const Member& member = sample.media.members[0];
  with_member_context(member, [&] { frames_.prepare_video(video_, *shard.open(member), sample.media.times, take); });
}

} // namespace fvlm
