#include "data/samples/frames.h"

#include "base/text.h"
#include "data/media/decode_image.h"
#include "data/media/endings.h"
#include "data/samples/error_context.h"
#include "data/samples/parts.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <numeric>

namespace fvlm {
namespace {

struct NumberedFrame {
  int64_t number;
  const Member* member;
};

// "000.jpg"
std::optional<int64_t> frame_number(const std::string& name) {
  int64_t number = 0;
  auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), number);
  if (error != std::errc{} || number < 0 || name[0] == '-' || end == name.data() + name.size() || *end != '.')
    return std::nullopt;
  const std::string ending(end + 1, name.data() + name.size());
  return is_image(ending) || ending == "gif" ? std::optional(number) : std::nullopt;
}

// The first number that a steady step from the first two on would have, and which is not there.
std::optional<int64_t> first_missing_number(const std::vector<NumberedFrame>& frames) {
  if (frames.size() < 3) return std::nullopt;
  int64_t step = frames[1].number - frames[0].number;
  for (size_t i = 1; i < frames.size(); ++i) step = std::min(step, frames[i].number - frames[i - 1].number);
  for (size_t i = 1; i < frames.size(); ++i)
    if (frames[i].number - frames[i - 1].number != step) return frames[i - 1].number + step;
  return std::nullopt;
}

} // namespace

const Member* unread_image(const ShardSample& sample) {
  const auto found =
      std::ranges::find_if(sample.members, [](const Member& member) { return is_unread_image(member.name); });
  return found == sample.members.end() ? nullptr : &*found;
}

const Member* dotted_member(const ShardSample& sample) {
  const auto found = std::ranges::find_if(sample.members, [](const Member& member) {
    return member.name.find('.') != std::string::npos && !frame_number(lower_case(member.name));
  });
  return found == sample.members.end() ? nullptr : &*found;
}

FoundFrames find_frames(const ShardSample& sample) {
  std::vector<const Member*> stills, videos, arrays;
  std::vector<NumberedFrame> numbered;
  for (const Member& member : sample.members) {
    std::string name = lower_case(member.name);
    if (is_image(name))
      stills.push_back(&member);
    else if (is_video(name))
      videos.push_back(&member);
    else if (name == "npy")
      arrays.push_back(&member);
    else if (auto number = frame_number(name))
      numbered.push_back({*number, &member});
  }
  std::vector<std::string> kinds;
  for (const auto* alone : {&stills, &videos, &arrays})
    for (const Member* member : *alone) kinds.push_back(fmt::format("'{}'", member->name));
  if (!numbered.empty()) kinds.push_back(counted(std::ssize(numbered), "numbered frame"));
  if (kinds.size() > 1)
    broken(fmt::format("it has {}, and one of them is all that can be used", fmt::join(kinds, " and ")));

  FoundFrames found;
  auto take = [&](Media::Kind kind, const Member& member) {
    found.media.kind = kind;
    found.media.members.push_back(member);
  };
  if (!stills.empty()) take(Media::Kind::images, *stills[0]), found.still = true;
  if (!videos.empty()) take(Media::Kind::video, *videos[0]);
  if (!arrays.empty()) take(Media::Kind::pixels, *arrays[0]);
  std::ranges::sort(numbered, {}, &NumberedFrame::number);
  for (size_t i = 0; i < numbered.size(); ++i) {
    if (i > 0 && numbered[i].number == numbered[i - 1].number)
      broken(fmt::format("frame {} is there twice: '{}' and '{}'", numbered[i].number, numbered[i - 1].member->name,
                         numbered[i].member->name));
    take(Media::Kind::images, *numbered[i].member);
  }
  found.gap = first_missing_number(numbered);
  return found;
}

std::vector<std::byte> read_image(const Shard& shard, const Member& member) {
  return with_media_errors([&] {
    if (member.size > max_image_file_bytes)
      broken(fmt::format("{} has {} bytes, more than the {} of an image", place_of(member), member.size,
                         max_image_file_bytes));
    return shard.read(member);
  });
}

std::vector<int64_t> evenly_spaced(int64_t count, int64_t most) {
  std::vector<int64_t> picks(static_cast<size_t>(std::min(count, most)));
  if (count <= most || most == 1) {
    std::iota(picks.begin(), picks.end(), int64_t{0});
    return picks;
  }
  for (int64_t i = 0; i < most; ++i) picks[static_cast<size_t>(i)] = i * (count - 1) / (most - 1);
  return picks;
}

} // namespace fvlm
