// A folder of files as a tar has them: those with the same name up to their ending are one sample.
#include "base/error.h"
#include "base/file.h"
#include "data/media/endings.h"
#include "data/shards/shard_form.h"
#include "data/shards/shard_index.h"

#include <fmt/format.h>

#include <string>
#include <vector>

namespace fvlm {
namespace {

namespace fs = std::filesystem;

constexpr uint64_t max_list_bytes = uint64_t{4} << 30;

// Unlike in a tar, where the key ends at the first dot, other dots belong to it. It is used where they cannot stand, so
// they are escaped as in a URL, which keeps the keys of a.b.jpg and a_b.jpg apart.
std::pair<std::string, std::string> key_and_name(const std::string& path) {
  const size_t base = path.rfind('/') + 1;
  size_t dot = path.rfind('.');
  if (dot == std::string::npos || dot <= base || dot + 1 == path.size()) return {};
  const size_t before = dot > base ? path.rfind('.', dot - 1) : std::string::npos;
  if (before != std::string::npos && before > base && before + 1 < dot &&
      path.find_first_not_of("0123456789", before + 1) == dot && is_image(path.substr(dot + 1)))
    dot = before; // a numbered frame
  std::string key = path.substr(0, base);
  for (const char c : path.substr(base, dot - base)) key += c == '.' ? "%2E" : c == '%' ? "%25" : std::string(1, c);
  return {std::move(key), path.substr(dot + 1)};
}

bool is_part(const std::string& path) {
  const std::string name = key_and_name(path).second;
  return name == "json" || name == "txt" || may_have_frames(name);
}

} // namespace

fs::path file_of_folder(const fs::path& folder, const fs::path& list) {
  if (fs::exists(folder / "metadata.jsonl")) return folder / "metadata.jsonl";
  std::vector<std::string> paths;
  std::error_code failed;
  for (auto entry = fs::recursive_directory_iterator(folder, failed); entry != fs::recursive_directory_iterator();
       entry.increment(failed)) {
    if (failed) break;
    std::string path = entry->path().lexically_relative(folder).string();
    if (entry->path().filename().string().starts_with('.')) {
      if (entry->is_directory(failed)) entry.disable_recursion_pending();
    } else if (is_part(path) && path.find('\n') == std::string::npos && entry->is_regular_file(failed)) {
      paths.push_back(std::move(path));
    }
  }
  if (failed) throw Error(ErrorKind::data, "cannot list the folder: " + failed.message()).at(folder.string());
  std::ranges::sort(paths, [](const std::string& a, const std::string& b) {
    return std::pair(key_and_name(a), a) < std::pair(key_and_name(b), b);
  });
  const std::string text = fmt::format("{}\n", fmt::join(paths, "\n"));
  if (!fs::exists(list) || read_file(list, max_list_bytes) != text) write_file_atomic(list, text);
  return list;
}

// The index has the places of paths in the list for members.
void scan_folder_list(const RetryingFile& file, IndexWriter& index) {
  std::string text(file.size(), '\0');
  file.read(0, std::as_writable_bytes(std::span(text)));
  ShardSample sample;
  for (size_t at = 0, end = 0; at < text.size(); at = end + 1) {
    end = std::min(text.find('\n', at), text.size());
    if (end == at) continue;
    auto [key, name] = key_and_name(text.substr(at, end - at));
    if (key != sample.key && !sample.members.empty()) index.add(sample);
    if (key != sample.key) sample = {.key = key};
    sample.members.push_back({name, at, end - at});
  }
  if (!sample.members.empty()) index.add(sample);
}

} // namespace fvlm
