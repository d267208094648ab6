#include "plugin/answer_files.h"

#include "base/error.h"
#include "base/file.h"
#include "base/hash.h"
#include "base/json.h"
#include "base/new_file.h"

#include <algorithm>
#include <mutex>
#include <vector>

namespace fvlm::answer_files {
namespace fs = std::filesystem;
namespace {

constexpr uint64_t max_bytes = 16 << 10; // of a file, which has a line for each plugin
constexpr size_t max_files = 4096;

// Where the cache is full, removes the half of its files that was written longest ago.
void evict_oldest(const fs::path& folder) {
  std::vector<std::pair<fs::file_time_type, fs::path>> files;
  std::error_code ignored; // other processes may be writing and removing files, too
  for (const auto& entry : fs::directory_iterator(folder))
    if (const auto time = entry.last_write_time(ignored); !ignored) files.emplace_back(time, entry.path());
  if (files.size() < max_files) return;
  std::ranges::sort(files);
  for (size_t i = 0; i < files.size() / 2; ++i) fs::remove(files[i].second, ignored);
}

} // namespace

fs::path file_of(const std::string& question) {
  return cache_folder() / "measured" / (sha256_hex(question).substr(0, 24) + ".json");
}

nlohmann::json load(const fs::path& file, const std::string& question) {
  if (std::error_code ignored; !fs::exists(file, ignored)) return nlohmann::json::object();
  nlohmann::json kept = read_json_object(file, max_bytes);
  if (kept.value("question", "") != question || !kept.value("plugins", nlohmann::json()).is_object())
    throw Error(ErrorKind::data, "holds the answers to another question");
  return kept["plugins"];
}

void store(const fs::path& file, const std::string& question, const std::string& plugin, const nlohmann::json& answer) {
  static std::mutex one_at_a_time;
  const std::lock_guard lock(one_at_a_time);
  make_folders(file.parent_path());
  nlohmann::json plugins = nlohmann::json::object();
  try {
    plugins = load(file, question);
  } catch (const std::exception&) { // reported when it was asked
  }
  plugins[plugin] = answer;
  evict_oldest(file.parent_path());
  write_file_atomic(file, nlohmann::json{{"question", question}, {"plugins", plugins}}.dump(1) + "\n");
}

} // namespace fvlm::answer_files
