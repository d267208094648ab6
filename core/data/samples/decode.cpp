#include "base/error.h"
#include "data/samples/error_context.h"
#include "data/samples/npy.h"
#include "data/samples/parts.h"
#include "data/samples/sample_reader.h"

#include <algorithm>

namespace fvlm {
void SampleReader::decode(const Shard& shard, const Sample& sample, std::span<float> frames) const {
  put_frames(shard, sample, frames.size(), [&](std::span<const uint8_t> pixels, size_t begin) {
    frames_.normalise(pixels, frames.subspan(begin, pixels.size()));
  });
}

void SampleReader::decode_pixels(const Shard& shard, const Sample& sample, std::span<uint8_t> frames) const {
  put_frames(shard, sample, frames.size(), [&](std::span<const uint8_t> pixels, size_t begin) {
    std::ranges::copy(pixels, frames.begin() + static_cast<ptrdiff_t>(begin));
  });
}

// `elements`: what there is room for.
void SampleReader::put_frames(const Shard& shard, const Sample& sample, size_t elements, const PutFrame& put) const {
  const auto frame = static_cast<size_t>(3 * frames_.image_size() * frames_.image_size()),
             wanted = static_cast<size_t>(sample.distinct_frames()) * frame;
  if (elements != wanted)
    throw Error(ErrorKind::internal, "{} values for the {} of {} frames", elements, wanted, sample.distinct_frames());
  size_t end = 0;
  each_frame(shard, sample, [&](std::span<const uint8_t> pixels) {
    if (end == wanted) broken("its images have more tiles than their headers say");
    put(pixels, end);
    end += frame;
  });
  if (end < wanted) broken("its images have fewer tiles than their headers say");
}

void SampleReader::each_frame(const Shard& shard, const Sample& sample, const TakeFrame& take) const {
  for (const auto& input : sample.inputs) each_frame(shard, *input, take);
  with_sample_context(shard, sample.key, [&] {
    switch (sample.media.kind) {
    case Media::Kind::none:
      break;
    case Media::Kind::images:
      return decode_images(shard, sample, take);
    case Media::Kind::video:
      return decode_video(shard, sample, take);
    case Media::Kind::pixels:
      return copy_pixels(shard, sample, take);
    }
  });
}

void SampleReader::decode_images(const Shard& shard, const Sample& sample, const TakeFrame& take) const {
  if (!sample.media.times.empty()) // a video
    return frames_.prepare_pictures(
        std::ssize(sample.media.members),
        [&](int64_t frame) {
          const Member& member = sample.media.members[static_cast<size_t>(frame)];
          const auto bytes = read_image(shard, member);
          return with_member_context(member, [&] { return FramePreparation::decoded(bytes); });
        },
        take);
  for (const Member& member : sample.media.members) {
    const auto bytes = read_image(shard, member);
    with_member_context(member, [&] { frames_.prepare_image(bytes, std::ssize(sample.media.members), take); });
  }
}

void SampleReader::copy_pixels(const Shard& shard, const Sample& sample, const TakeFrame& take) const {
  const Member& member = sample.media.members[0];
  std::vector<std::byte> head(std::min<uint64_t>(npy_head_bytes, member.size));
  const auto file = shard.open(member);
  file->read(0, head);
  const uint64_t data = read_npy_head(head, member.size).data;
  std::vector<uint8_t> pixels(static_cast<size_t>(frames_.image_size() * frames_.image_size() * 3));
  for (int64_t pick : sample.media.picks) {
    file->read(data + static_cast<uint64_t>(pick) * pixels.size(), std::as_writable_bytes(std::span(pixels)));
    take(pixels);
  }
}

} // namespace fvlm
