#include "data/media/video.h"

#include "base/error.h"
#include "data/samples/parts.h"
#include "data/samples/sample_reader.h"

namespace fvlm {
namespace {

// A member of a shard as the file that a decoder reads here and there.
class MemberFile final : public RandomAccess {
 public:
  MemberFile(const Shard& shard, const Member& member) : shard_(shard), member_(member) {}
  uint64_t size() const override { return member_.size; }
  void read(uint64_t offset, std::span<std::byte> into) const override { shard_.read(member_.offset + offset, into); }

 private:
  const Shard& shard_;
  const Member& member_;
};

template <class Work>
auto with_mp4_context(Work&& work) {
  try {
    return work();
  } catch (const ReadError&) {
    throw;
  } catch (const Error& error) {
    throw Error(error.kind(), error.what()).at("KEY.mp4").advise(error.advice());
  }
}

} // namespace

void SampleReader::time_video(const Shard& shard, Sample& sample) const {
  if (!video_)
    throw Error(ErrorKind::data, "KEY.mp4 needs a plugin that decodes videos, and there is none")
        .advise("`fvlm-engine plugin list` says why");
  VideoInfo info = with_mp4_context([&] { return video_->probe(MemberFile(shard, sample.media.members[0])); });
  if (!(info.seconds > 0)) broken("KEY.mp4 does not say how long it is");
  sample.media.times = sample_frame_times(info.seconds, mix_.max_frames);
  sample.frames = static_cast<int64_t>(sample.media.times.size());
}

void SampleReader::decode_video(const Shard& shard, const Sample& sample, const TakeFrame& take) const {
  if (!video_) throw Error(ErrorKind::internal, "a video was measured with a decoder, and there is none to decode it");
  with_mp4_context(
      [&] { frames_.prepare_video(*video_, MemberFile(shard, sample.media.members[0]), sample.media.times, take); });
}

} // namespace fvlm
