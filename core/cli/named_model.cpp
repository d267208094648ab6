#include "cli/named_model.h"

#include "base/error.h"
#include "base/file.h"
#include "base/hash.h"
#include "base/interrupt.h"
#include "base/json.h"
#include "base/log.h"
#include "base/text.h"
#include "cli/import_checks.h"
#include "cli/progress.h"
#include "cli/transfer.h"
#include "model/weights/model_file.h"
#include "model/weights/resolve_model.h"
#include "model/weights/transfer.h"
#include "model/weights/whole_model.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cstdlib>
#include <optional>
#include <vector>

namespace fvlm::cli {
namespace {

namespace fs = std::filesystem;

constexpr uint64_t largest_config = uint64_t{16} << 20;

std::optional<fs::path> folder_in_environment(const char* variable) {
  const char* value = std::getenv(variable);
  if (!value || !*value) return std::nullopt;
  return value;
}

// Where huggingface_hub keeps what was downloaded without a folder to put it into.
std::optional<fs::path> hub_cache() {
  if (const auto own = folder_in_environment("HF_HUB_CACHE")) return own;
  if (const auto home = folder_in_environment("HF_HOME")) return *home / "hub";
  if (const auto cache = folder_in_environment("XDG_CACHE_HOME")) return *cache / "huggingface" / "hub";
  if (const auto home = folder_in_environment("HOME")) return *home / ".cache" / "huggingface" / "hub";
  return std::nullopt;
}

// The newest download of "org/model"; nothing: there is none.
std::optional<fs::path> downloaded(const std::string& named) {
  const std::vector<std::string> words = split(named, '/');
  const auto cache = hub_cache();
  std::error_code ignored;
  if (words.size() != 2 || words[0].empty() || words[1].empty() || !cache || fs::exists(named, ignored)) return {};
  const fs::path repository = *cache / fmt::format("models--{}--{}", words[0], words[1]);
  const fs::path newest = repository / "refs" / "main";
  if (!fs::is_regular_file(newest, ignored)) return {};
  constexpr uint64_t most = 256;
  const fs::path snapshot = repository / "snapshots" / trimmed(read_file(newest, most));
  if (!fs::is_directory(snapshot, ignored)) return {};
  return snapshot;
}

bool is_published_model(const fs::path& folder) {
  std::error_code ignored;
  if (fs::exists(folder / ModelFile::name, ignored) || fs::exists(folder / "plan.json", ignored)) return false;
  const fs::path config = folder / "config.json";
  if (!fs::is_regular_file(config, ignored)) return false;
  const nlohmann::json type = read_json_object(config, largest_config).value("model_type", nlohmann::json());
  return std::ranges::any_of(whole_model_families(),
                             [&](const WholeModelFamily& family) { return type == family.model_type; });
}

// Of the folder and of what lies in it, so that another version of a model is imported anew.
std::string key_of(const fs::path& folder) {
  std::vector<std::string> files;
  for (const auto& entry : fs::directory_iterator(folder))
    if (entry.is_regular_file())
      files.push_back(fmt::format("{} {} {}", entry.path().filename().string(), entry.file_size(),
                                  entry.last_write_time().time_since_epoch().count()));
  std::ranges::sort(files);
  return sha256_hex(fs::canonical(folder).string() + "\n" + join(files, "\n")).substr(0, 12);
}

fs::path imported(const fs::path& folder, const std::string& name) {
  const fs::path out = cache_folder() / "models" / fmt::format("{}-{}", name, key_of(folder));
  std::error_code ignored;
  if (fs::exists(out / ModelFile::name, ignored)) return out;
  log_info("{}: importing this published model, once, into {}", folder.string(), out.string());
  WholeImportRequest request;
  request.model = folder;
  request.out = out;
  request.name = name;
  request.check_before_writing = whole_model_check(folder);
  const InterruptibleWrites interruptible;
  Progress progress("importing");
  try {
    warn_of_values(import_whole_model(request, [&](uint64_t done, uint64_t total) { progress.bytes(done, total); }));
  } catch (const Error&) {
    if (!fs::exists(out / ModelFile::name, ignored)) throw; // else another process has imported it meanwhile
  }
  progress.finish();
  return out;
}

} // namespace

std::string usual_name_of_model(const std::string& named) {
  if (downloaded(named)) return named;
  return fs::weakly_canonical(named).filename().string();
}

fs::path model_named(const std::string& named) {
  const fs::path folder = downloaded(named).value_or(named);
  if (!is_published_model(folder)) return resolve_model(folder);
  return imported(folder, fs::path(usual_name_of_model(named)).filename().string());
}

} // namespace fvlm::cli
