#include "data/samples/named_media.h"

#include "base/base64.h"
#include "base/error.h"
#include "base/json.h"
#include "base/text.h"
#include "data/media/endings.h"
#include "data/samples/turns.h"

#include <fmt/format.h>

#include <cstring>
#include <filesystem>
#include <sys/stat.h>

namespace fvlm {
namespace {

using Json = nlohmann::json;

// A file or value that is named, and how it is to be read.
struct NamedMedium {
  Member member; // without its name
  bool is_video = false, is_gif = false;
};

class NamedMedia {
 public:
  NamedMedia(const Shard& shard, const Parts& parts, ShardSample& sample)
      : shard_(shard), parts_(parts), sample_(sample) {}

  void add(std::span<const NamedValue> values) {
    for (const auto& [value, pointer, is_video] : values)
      is_turns(*value) ? take_contents(*value, pointer) : take(*value, pointer, is_video);
    add_found();
  }

  void add() {
    for (const char* part : {"image", "images", "video", "videos"}) take_part(part, *part == 'v');
    if (found_.empty())
      for (const char* part : {"file_name", "file_names"}) take_part(part, false);
    for (const char* part : {"messages", "prompt", "chosen"})
      if (const Json* turns = found_.empty() ? parts_.find(part) : nullptr) take_contents(*turns, parts_.pointer(part));
    add_found();
  }

 private:
  void add_found() {
    const bool several = found_.size() > 1;
    for (size_t i = 0; i < found_.size(); ++i) {
      NamedMedium& each = found_[i];
      if (several && each.is_video)
        broken(fmt::format("it names {} images and videos, and one video or any number of images can be used",
                           found_.size()));
      each.member.name = each.is_video ? each.is_gif ? "gif" : "mp4"
                         : several     ? fmt::format("{:03}.jpg", i)
                                       : "jpg"; // of a GIF the first frame
      sample_.members.push_back(std::move(each.member));
    }
  }

  void take_part(const std::string& part, bool is_video) {
    if (const Json* value = parts_.find(part)) take(*value, parts_.pointer(part), is_video);
  }

  // Of turns whose content is a list of parts.
  void take_contents(const Json& turns, const std::string& pointer) {
    if (!turns.is_array()) return;
    for (size_t i = 0; i < turns.size(); ++i) {
      const Json& turn = turns[i];
      if (!turn.is_object() || !turn.contains("content") || !turn["content"].is_array()) continue;
      for (size_t j = 0; j < turn["content"].size(); ++j)
        take_content(turn["content"][j], fmt::format("{}/{}/content/{}", pointer, i, j));
    }
  }

  void take_content(const Json& content, const std::string& pointer) {
    if (!content.is_object() || !content.contains("type") || !content["type"].is_string()) return;
    const std::string& type = content["type"].get_ref<const std::string&>();
    if (!type.starts_with("image") && !type.starts_with("video")) return;
    for (const std::string& key : {type, type.substr(0, 5), std::string("path"), std::string("url")})
      if (content.contains(key) && !content[key].is_null())
        return take(content[key], pointer + "/" + escaped_key(key), type[0] == 'v');
  }

  void take(const Json& value, const std::string& pointer, bool is_video) {
    if (value.is_null()) return;
    if (value.is_string()) return take_text(value.get_ref<const std::string&>(), pointer, is_video);
    if (value.is_binary()) return take_value(value.get_binary().size(), beginning(value), pointer, is_video);
    if (value.is_array()) {
      for (size_t i = 0; i < value.size(); ++i) take(value[i], fmt::format("{}/{}", pointer, i), is_video);
      return;
    }
    if (!value.is_object()) wrong_type("'" + pointer.substr(1) + "'", value, "a path");
    if (const auto bytes = value.find("bytes"); bytes != value.end() && !bytes->is_null()) {
      if (bytes->is_string())
        return take_value(bytes->get_ref<const std::string&>().size(), "", pointer + "/bytes", is_video);
      return take(*bytes, pointer + "/bytes", is_video);
    }
    for (const char* key : {"path", "url"})
      if (const auto found = value.find(key); found != value.end() && found->is_string())
        return take(*found, pointer + "/" + key, is_video);
    broken(fmt::format("'{}' has neither bytes nor a path", pointer.substr(1)));
  }

  static std::string beginning(const Json& value) {
    const auto& bytes = value.get_binary();
    return {bytes.begin(), bytes.begin() + static_cast<ptrdiff_t>(std::min<size_t>(bytes.size(), 12))};
  }

  void take_value(uint64_t size, const std::string& beginning, const std::string& pointer, bool is_video) {
    NamedMedium named{
        {.size = size, .pointer = pointer, .row = sample_.number}, is_video, beginning.starts_with("GIF8")};
    named.is_video = named.is_video || (beginning.size() >= 8 && beginning.compare(4, 4, "ftyp") == 0 &&
                                        !beginning.ends_with("avif") && !beginning.ends_with("heic"));
    found_.push_back(std::move(named));
  }

  void take_text(std::string name, const std::string& pointer, bool is_video) {
    if (name.empty()) return;
    if (name.starts_with("data:")) {
      const std::string type = name.substr(5, name.find_first_of(";,") - 5);
      take_value(name.size() / 4 * 3, "", pointer, is_video || type.starts_with("video/"));
      found_.back().is_gif = type == "image/gif";
      return;
    }
    if (is_base64_file(name)) return take_value(name.size() / 4 * 3, "", pointer, is_video);
    if (name.starts_with("file://")) name.erase(0, 7);
    if (const size_t colon = name.find("://"); colon != std::string::npos && colon < 8)
      throw Error(ErrorKind::data, "'{}' is {}, and files of this machine alone are read", pointer.substr(1),
                  name.substr(0, 80))
          .advise("download it, and write its path");
    const std::string path = shard_.media_path(name).string();
    struct stat info {};
    if (stat(path.c_str(), &info) != 0 || S_ISDIR(info.st_mode))
      throw Error(ErrorKind::data, "'{}': {}: {}", pointer.substr(1), path,
                  S_ISDIR(info.st_mode) ? "it is a folder" : std::strerror(errno))
          .advise("paths are relative to the file's folder, or to the source's `root`");
    const std::string ending = std::filesystem::path(name).extension().string();
    const std::string type = ending.empty() ? "" : ending.substr(1);
    found_.push_back({{.size = static_cast<uint64_t>(info.st_size), .file = path},
                      is_video || (fvlm::is_video(type) && lower_case(type) != "gif"),
                      lower_case(type) == "gif"});
  }

  const Shard& shard_;
  const Parts& parts_;
  ShardSample& sample_;
  std::vector<NamedMedium> found_;
};

} // namespace

void add_named_media(const Shard& shard, const Parts& parts, ShardSample& sample) {
  NamedMedia(shard, parts, sample).add();
}

void add_named_media(const Shard& shard, const Parts& parts, std::span<const NamedValue> values, ShardSample& sample) {
  NamedMedia(shard, parts, sample).add(values);
}

} // namespace fvlm
