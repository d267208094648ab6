#include "data/convert.h"

#include "base/error.h"
#include "data/media/decode_image.h"
#include "data/samples/error_context.h"
#include "data/samples/named_media.h"
#include "data/samples/sample_reader.h"
#include "data/shards/shard_set.h"
#include "data/shards/shard_writer.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <charconv>
#include <optional>
#include <string_view>

namespace fvlm {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

constexpr size_t max_told = 20;

// "shards-%06d.tar" in three parts.
struct NumberedName {
  std::string before, after;
  int width = 0;

  explicit NumberedName(const std::string& name) {
    const size_t percent = name.find('%'), end = percent == std::string::npos ? percent : name.find('d', percent);
    const std::string digits = end == std::string::npos ? "" : name.substr(percent + 1, end - percent - 1);
    if (end == std::string::npos || name.find('%', end) != std::string::npos || digits.size() > 3 ||
        digits.find_first_not_of("0123456789") != std::string::npos)
      throw Error(ErrorKind::usage, "'{}' has no place for the number of a shard", name)
          .advise("write %06d where it stands, as in shards-%06d.tar");
    before = name.substr(0, percent);
    after = name.substr(end + 1);
    width = digits.empty() ? 0 : std::stoi(digits);
  }
  fs::path path(int64_t number) const { return fmt::format("{}{:0{}}{}", before, number, width, after); }

  // A file that is there and has such a name.
  std::optional<fs::path> existing() const {
    const fs::path begin = before;
    const std::string prefix = begin.filename().string();
    std::error_code absent;
    for (const auto& entry : fs::directory_iterator(begin.has_parent_path() ? begin.parent_path() : ".", absent)) {
      const std::string name = entry.path().filename().string();
      int64_t number = -1;
      if (name.starts_with(prefix)) std::from_chars(name.data() + prefix.size(), name.data() + name.size(), number);
      if (number >= 0 && fs::exists(path(number))) return path(number);
    }
    return {};
  }
};

// The name of a member in a tar, where the ending says what it is. A GIF that stands for an image remains one.
std::string name_in_tar(const Member& member, std::span<const std::byte> bytes) {
  const auto ending = image_ending(bytes);
  if (!member.name.ends_with("jpg") || !ending || *ending == "gif") return member.name;
  return member.name.substr(0, member.name.size() - 3) + *ending;
}

// The first bytes of MP4, QuickTime, WebM, Matroska, AVI and GIF.
bool looks_like_video(std::span<const std::byte> bytes) {
  const std::string_view head(reinterpret_cast<const char*>(bytes.data()), std::min<size_t>(bytes.size(), 8));
  for (const char* begin : {"\x1a\x45\xdf\xa3", "RIFF", "GIF8"})
    if (head.starts_with(begin)) return true;
  for (const char* box : {"ftyp", "moov", "mdat", "wide", "free", "skip"})
    if (head.ends_with(box) && head.size() == 8) return true;
  return false;
}

// A list of samples names files by path, and may come from somebody else: a file that is no image or video, such as a
// key or a password, is not copied into shards that are given away. Throws Error(data).
void require_media(const Member& member, std::span<const std::byte> bytes) {
  if (member.name.ends_with("mp4") || member.name.ends_with("gif")) {
    if (!looks_like_video(bytes))
      throw Error(ErrorKind::data, "not a video: expected MP4, QuickTime, WebM, Matroska, AVI or GIF");
  } else if (!looks_like_image(bytes)) {
    decode_image(bytes); // throws, and says which format it is if it knows
  }
}

// Binary values, which JSON cannot have.
void remove_binaries(Json& json) {
  if (json.is_binary())
    json = nullptr;
  else if (json.is_structured())
    for (Json& inner : json) remove_binaries(inner);
}

class Conversion {
 public:
  Conversion(const plan::Source& source, const std::string& out, uint64_t shard_bytes)
      : source_(source), name_(out), shard_bytes_(shard_bytes) {
    // It may be read here, too; and where there are fewer shards now, the last of an earlier conversion would remain.
    if (const auto file = name_.existing())
      throw Error(ErrorKind::output, "a shard of this name already exists")
          .at(file->string())
          .advise("name others, or remove those of the earlier conversion");
  }

  void add(const Shard& shard, int64_t number) {
    std::vector<std::pair<std::string, std::vector<std::byte>>> files;
    try {
      with_sample_context(shard, shard.sample(number).key, [&] { files = files_of(shard, shard.sample(number)); });
    } catch (const ReadError&) {
      throw;
    } catch (const Error& error) {
      if (error.kind() != ErrorKind::data) throw;
      ++done_.broken;
      if (done_.reasons.size() < max_told) done_.reasons.push_back(error.text());
      files = {{"json", bytes_of(Json{{broken_key, error.what()}})}};
    }
    if (!writer_) {
      const fs::path path = name_.path(done_.shards++);
      if (!path.parent_path().empty()) fs::create_directories(path.parent_path());
      writer_.emplace(path);
    }
    const std::string key = fmt::format("{:08}", done_.samples++);
    for (const auto& [name, bytes] : files) writer_->add(key + "." + name, bytes);
    if (writer_->size() >= shard_bytes_) close();
  }

  Converted finish() {
    close();
    return std::move(done_);
  }

 private:
  static std::vector<std::byte> bytes_of(const Json& json) {
    const std::string text = json.dump(-1, ' ', false, Json::error_handler_t::replace);
    const auto bytes = std::as_bytes(std::span(text));
    return {bytes.begin(), bytes.end()};
  }

  std::vector<std::pair<std::string, std::vector<std::byte>>> files_of(const Shard& shard, ShardSample sample) const {
    if (!sample.damage.empty()) throw Error(ErrorKind::data, sample.damage);
    std::vector<std::pair<std::string, std::vector<std::byte>>> files;
    if (shard.names_media()) {
      Json json = *shard.json(sample);
      sample.members.clear();
      add_named_media(shard, Parts(json, source_.fields), sample);
      for (const Member& member : sample.members)
        if (member.row >= 0) json.at(Json::json_pointer(member.pointer)) = nullptr;
      remove_binaries(json);
      if (sample.members.empty() && !source_.text_only()) json.emplace("frame_count", 0);
      files.emplace_back("json", bytes_of(json));
    }
    for (const Member& member : sample.members) {
      auto bytes = with_member_context(member, [&] { return shard.read(member); });
      if (shard.names_media()) with_member_context(member, [&] { require_media(member, bytes); });
      std::string name = shard.names_media() ? name_in_tar(member, bytes) : member.name;
      files.emplace_back(std::move(name), std::move(bytes));
    }
    return files;
  }

  void close() {
    if (!writer_) return;
    writer_->commit();
    done_.bytes += writer_->size();
    writer_.reset();
  }

  const plan::Source& source_;
  NumberedName name_;
  uint64_t shard_bytes_;
  std::optional<ShardWriter> writer_;
  Converted done_;
};

} // namespace

Converted convert(const plan::Source& source, const std::string& out, uint64_t shard_bytes, const ShardOptions& options,
                  const std::function<void(int64_t done, int64_t all)>& progress) {
  Conversion conversion(source, out, shard_bytes);
  const ShardSet shards(source.patterns(), with_root(options, source));
  int64_t done = 0;
  for (int64_t i = 0; i < shards.shards(); ++i) {
    const auto shard = shards.shard(i);
    for (int64_t number = 0; number < shard->size(); ++number) {
      conversion.add(*shard, number);
      progress(++done, shards.size());
    }
  }
  return conversion.finish();
}

} // namespace fvlm
