#include "base/error.h"
#include "data/media/decode_image.h"
#include "data/media/normalise.h"
#include "data/media/resize.h"
#include "data/samples/npy.h"
#include "data/samples/parts.h"
#include "data/samples/placed.h"
#include "data/samples/sample_reader.h"

#include <algorithm>

namespace fvlm {
namespace {

constexpr uint64_t most_image_bytes = uint64_t{256} << 20; // of one file

// The first of several equal frames to the others.
void repeat_first(std::span<float> frames, size_t frame) {
  for (size_t at = frame; at < frames.size(); at += frame)
    std::copy_n(frames.begin(), frame, frames.begin() + static_cast<ptrdiff_t>(at));
}

} // namespace

void SampleReader::decode(const Shard& shard, const Sample& sample, std::span<float> frames) const {
  auto wanted = static_cast<size_t>(sample.frames * 3 * image_size_ * image_size_);
  if (frames.size() != wanted)
    throw Error(ErrorKind::internal,
                fmt::format("{} floats for the {} of {} frames", frames.size(), wanted, sample.frames));
  placed(shard, sample.key, [&] {
    switch (sample.media.kind) {
    case Media::Kind::none:
      break;
    case Media::Kind::images:
      return decode_images(shard, sample, frames);
    case Media::Kind::video:
      return decode_video(shard, sample, frames);
    case Media::Kind::pixels:
      return copy_pixels(shard, sample, frames);
    }
  });
}

void SampleReader::decode_images(const Shard& shard, const Sample& sample, std::span<float> frames) const {
  std::vector<uint8_t> pixels(static_cast<size_t>(image_size_ * image_size_ * 3));
  const auto& members = sample.media.members;
  for (size_t i = 0; i < members.size(); ++i) {
    const Member& member = members[i];
    if (member.size > most_image_bytes)
      broken(
          fmt::format("KEY.{} has {} bytes, more than the {} of an image", member.name, member.size, most_image_bytes));
    auto bytes = shard.read(member);
    try {
      resize(decode_image(bytes, {.width = image_size_, .height = image_size_}), image_size_, image_size_, pixels);
    } catch (const Error& error) {
      throw Error(error.kind(), error.what()).at("KEY." + member.name).advise(error.advice());
    }
    normalise(pixels, frames.subspan(i * pixels.size(), pixels.size()));
  }
  if (members.size() == 1) repeat_first(frames, pixels.size());
}

void SampleReader::copy_pixels(const Shard& shard, const Sample& sample, std::span<float> frames) const {
  const Member& member = sample.media.members[0];
  std::vector<std::byte> head(std::min<uint64_t>(npy_head_bytes, member.size));
  shard.read(member.offset, head);
  uint64_t data = member.offset + read_npy_head(head, member.size).data;
  std::vector<uint8_t> pixels(static_cast<size_t>(image_size_ * image_size_ * 3));
  const auto& picks = sample.media.picks;
  for (size_t i = 0; i < picks.size(); ++i) {
    shard.read(data + static_cast<uint64_t>(picks[i]) * pixels.size(), std::as_writable_bytes(std::span(pixels)));
    normalise(pixels, frames.subspan(i * pixels.size(), pixels.size()));
  }
  if (picks.size() == 1) repeat_first(frames, pixels.size());
}

} // namespace fvlm
