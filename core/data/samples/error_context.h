// Adds the shard and the key of the sample to an error about a broken sample, and replaces KEY in its text by the key.
// A ReadError, which is about the disk, passes through unchanged.
#pragma once
#include "base/error.h"
#include "data/shards/shard.h"

#include <fmt/format.h>

#include <string>
#include <string_view>

namespace fvlm {

// An image or video of a sample is broken, whenever that is noticed: SkipReason::media.
class MediaError : public Error {
 public:
  explicit MediaError(const Error& error) : Error(error) {}
};

template <class Work>
auto with_media_errors(const Work& work) {
  try {
    return work();
  } catch (const ReadError&) {
    throw;
  } catch (const Error& error) {
    throw MediaError(error);
  }
}

inline std::string with_key(std::string text, const std::string& key) {
  constexpr std::string_view placeholder = "KEY.";
  for (size_t at = text.find(placeholder); at != std::string::npos; at = text.find(placeholder, at + key.size() + 1))
    text.replace(at, placeholder.size(), key + ".");
  return text;
}

inline std::string place_of(const Member& member) {
  if (!member.file.empty()) return member.file;
  return member.row >= 0 ? "'" + member.pointer.substr(1) + "'" : "KEY." + member.name;
}

// Says which image or video of a sample an error is about.
template <class Work>
auto with_member_context(const Member& member, const Work& work) {
  try {
    return work();
  } catch (const ReadError&) {
    throw;
  } catch (const Error& error) {
    throw MediaError(Error(error.kind(), error.what()).at(place_of(member)).advise(error.advice()));
  }
}

template <class Work>
auto with_sample_context(const Shard& shard, const std::string& key, Work&& work) {
  try {
    return work();
  } catch (const ReadError&) {
    throw;
  } catch (const Error& error) {
    std::string what = error.where().empty() ? error.what() : fmt::format("{}: {}", error.where(), error.what());
    Error placed(error.kind(), with_key(what, key));
    placed.at("{}: {}", shard.path().string(), sample_name(key)).advise(with_key(error.advice(), key));
    if (dynamic_cast<const MediaError*>(&error)) throw MediaError(placed);
    throw placed;
  }
}

} // namespace fvlm
