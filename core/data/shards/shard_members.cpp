// What the members of samples are: bytes of the shard, files of their own, or values of a row.
#include "base/base64.h"
#include "base/error.h"
#include "base/exact_json.h"
#include "base/json.h"
#include "data/shards/shard.h"

#include <cstring>
#include <sys/stat.h>
#include <unistd.h>

namespace fvlm {
namespace {

namespace fs = std::filesystem;

constexpr uint64_t max_json_bytes = uint64_t{512} << 20; // it may have images or a long document in it

class PartOfFile final : public RandomAccess {
 public:
  PartOfFile(const RetryingFile& file, const Member& member) : file_(file), begin_(member.offset), size_(member.size) {}
  uint64_t size() const override { return size_; }
  void read(uint64_t offset, std::span<std::byte> into) const override { file_.read(begin_ + offset, into); }

 private:
  const RetryingFile& file_;
  uint64_t begin_, size_;
};

class WholeFile final : public RandomAccess {
 public:
  WholeFile(const std::string& path, const RetryPolicy& policy) : file_(path, policy) {}
  uint64_t size() const override { return file_.size(); }
  void read(uint64_t offset, std::span<std::byte> into) const override { file_.read(offset, into); }

 private:
  RetryingFile file_;
};

// A binary value, or the text of one: "data:image/png;base64,..." or base64 alone.
std::vector<uint8_t> bytes_of(nlohmann::json& value, const std::string& name) {
  if (value.is_binary()) return std::move(static_cast<std::vector<uint8_t>&>(value.get_binary()));
  std::string_view text = value.get_ref<const std::string&>();
  if (text.starts_with("data:")) text.remove_prefix(std::min(text.find(',') + 1, text.size()));
  const auto decoded = decode_base64(text);
  if (!decoded) throw Error(ErrorKind::data, "{} is no base64", name);
  return {decoded->begin(), decoded->end()};
}

bool is_of_tools(std::string_view key) {
  return key == "tools" || key == "tool_calls";
}

void put_texts_of_tools(const nlohmann::ordered_json& from, nlohmann::json& to) {
  if (from.is_array())
    for (size_t i = 0; i < from.size(); ++i) put_texts_of_tools(from[i], to[i]);
  if (!from.is_object()) return;
  for (const auto& [key, value] : from.items())
    if (is_of_tools(key) && value.is_array())
      to[key] = exact_text(value);
    else
      put_texts_of_tools(value, to[key]);
}

// An object sorts its keys, and chat templates write those of tools in the order of the data: they become JSON texts.
void keep_order_of_tools(std::string_view text, nlohmann::json& object) {
  if (text.find(R"("tools")") == text.npos && text.find(R"("tool_calls")") == text.npos) return;
  if (const auto ordered = exact_json(text); !ordered.is_discarded()) put_texts_of_tools(ordered, object);
}

} // namespace

fs::path Shard::media_path(const std::string& name) const {
  const fs::path root = !options_.root.empty() ? options_.root : fs::is_directory(path_) ? path_ : path_.parent_path();
  return root / name; // which an absolute one replaces
}

// Of a folder: the index has the places of their names in the list.
void Shard::add_files(ShardSample& sample) const {
  for (Member& member : sample.members) {
    std::string name(member.size, '\0');
    file_->read(member.offset, std::as_writable_bytes(std::span(name)));
    member.file = (path_ / name).string();
    struct stat info {};
    if (stat(member.file.c_str(), &info) != 0) sample.damage = fmt::format("{}: {}", member.file, std::strerror(errno));
    member.size = static_cast<uint64_t>(info.st_size);
    member.offset = 0;
  }
}

std::optional<nlohmann::json> Shard::json(const ShardSample& sample) const {
  nlohmann::json object;
  if (rows_) {
    object = rows_->row(sample);
  } else {
    const auto found = std::ranges::find(sample.members, "json", &Member::name);
    if (found == sample.members.end()) return std::nullopt;
    const std::string name = names_media() ? "its JSON" : "KEY.json";
    if (found->size > max_json_bytes)
      throw Error(ErrorKind::data, "{} has {} bytes, more than the {} of a text", name, found->size, max_json_bytes);
    const auto bytes = read(*found);
    const std::string_view text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
    object = parse_json(text, name);
    keep_order_of_tools(text, object);
  }
  if (!object.is_object()) wrong_type(names_media() ? "its JSON" : "KEY.json", object, "an object");
  return object;
}

std::unique_ptr<const RandomAccess> Shard::open(const Member& member) const {
  if (member.row >= 0) {
    auto object = json(sample(member.row));
    const auto bytes = std::make_shared<const std::vector<uint8_t>>(
        bytes_of(object->at(nlohmann::json::json_pointer(member.pointer)), "'" + member.pointer.substr(1) + "'"));
    return std::make_unique<BytesInMemory>(std::as_bytes(std::span(*bytes)), bytes);
  }
  if (member.file.empty()) return std::make_unique<PartOfFile>(*file_, member);
  if (access(member.file.c_str(), R_OK) != 0 && (errno == ENOENT || errno == ENOTDIR || errno == EACCES))
    throw Error(ErrorKind::data, "{}: {}", member.file, std::strerror(errno)); // retrying cannot help
  auto file = std::make_unique<WholeFile>(member.file, options_.retry);
  if (file->size() != member.size)
    throw Error(ErrorKind::data, "{} had {} bytes and has {}", member.file, member.size, file->size());
  return file;
}

std::vector<std::byte> Shard::read(const Member& member) const {
  const auto file = open(member);
  std::vector<std::byte> bytes(file->size());
  file->read(0, bytes);
  return bytes;
}

} // namespace fvlm
