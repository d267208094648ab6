#include "recipe/files.h"

#include "base/error.h"
#include "base/glob.h"
#include "base/path_hint.h"
#include "recipe/names_stage.h"

#include <fmt/format.h>

#include <filesystem>
#include <set>

namespace fvlm::recipe {
namespace {

namespace fs = std::filesystem;

class FileSearch {
 public:
  explicit FileSearch(const Resolved& resolved) : resolved_(resolved) {}

  void model() {
    const auto& model = resolved_.plan.model;
    if (auto* folder = std::get_if<std::string>(&model.vision)) tower("model.vision", *folder);
    for (size_t i = 0; i < model.decoder_count(); ++i) {
      const plan::Model one = model.with_decoder(i);
      const std::string path = i == 0 ? "model.decoder" : "model.decoders" + index_part(i);
      if (auto* folder = std::get_if<std::string>(&one.decoder))
        tower(path, *folder);
      else
        file(path + ".tokenizer", fs::path(one.tokenizer_folder()) / "tokenizer.json");
    }
  }

  void stage(const plan::Stage& stage) {
    std::string path = "stages" + key_part(stage.name);
    if (stage.from.find('/') != std::string::npos) file(path + ".from", stage.from);
    mix(path + ".data", stage.data);
    for (const auto& set : stage.evaluation.sets)
      mix(path + ".evaluation.sets" + key_part(set.name) + ".data", set.data);
    for (size_t i = 0; i < stage.objective.size(); ++i)
      if (const std::string* teacher = stage.objective[i]->teacher();
          teacher && !plan::names_stage(resolved_.plan, *teacher))
        file(path + ".objective" + index_part(i + 1) + ".teacher", *teacher);
  }

  FileReport report;

 private:
  void tower(const std::string& path, const fs::path& folder) {
    if (!exists(folder)) return note(path, folder, "there is no such folder", hint_on_model(folder));
    file(path, folder / "config.json");
    if (!exists(folder / "model.safetensors") && !exists(folder / "model.safetensors.index.json"))
      note(path, folder / "model.safetensors", "there is no such file, nor model.safetensors.index.json");
  }

  void mix(const std::string& path, const plan::Mix& mix) {
    if (mix.preprocessed) file(path + ".preprocessed", *mix.preprocessed); // training compares it with its sources
    for (size_t i = 0; i < mix.sources.size(); ++i) {
      const auto& source = mix.sources[i];
      if (source.root) file(path + ".sources" + index_part(i + 1) + ".root", *source.root);
      std::string at = path + ".sources" + index_part(i + 1) + (source.text_only() ? ".text" : ".shards");
      for (const auto& pattern : source.patterns()) shards(at, pattern);
    }
  }

  void shards(const std::string& path, const std::string& pattern) {
    Matches found;
    try {
      found = match_files(pattern);
    } catch (const Error& error) {
      return note(path, pattern, fmt::format("{} ({})", error.what(), error.advice()));
    }
    for (const auto& name : found.files) {
      std::error_code error;
      const bool is_folder = fs::is_directory(name, error);
      const std::string advice = is_folder ? advise_folder(name) : "";
      const uint64_t bytes = is_folder ? 0 : fs::file_size(name, error);
      if (!advice.empty())
        note(path, name, "is a folder of shards, not a shard: " + advice);
      else if (error)
        note(path, name, "is not a regular file");
      else if (seen_.insert(name).second)
        ++report.shards, report.shard_bytes += bytes;
    }
    if (found.nothing.empty()) return;
    const std::string& first = found.nothing.front();
    size_t all = found.nothing.size() + found.files.size();
    std::string what;
    if (std::string folder = absent_folder(first); !folder.empty() && found.files.empty())
      what = fmt::format("there is no folder {}", folder);
    else if (found.nothing.size() == 1)
      what = first == pattern ? is_wild(first) ? "no file matches this pattern" : "there is no such file"
                              : fmt::format("{} does not exist", first);
    else if (found.files.empty())
      what = fmt::format("none of the {} files it expands to exists, starting with {}", all, first);
    else
      what = fmt::format("{} of {} files do not exist, the first is {}", found.nothing.size(), all, first);
    note(path, pattern, what, hint_on_home(pattern));
  }

  static bool is_wild(const std::string& name) { return name.find_first_of("*?[") != std::string::npos; }

  // The outermost parent folder of `name` that does not exist. Empty where all exist or a name has wildcards.
  static std::string absent_folder(const std::string& name) {
    fs::path folder;
    for (const auto& part : fs::path(name).parent_path()) {
      folder /= part;
      if (is_wild(part.string())) return "";
      if (!exists(folder)) return folder.string();
    }
    return "";
  }

  static bool exists(const fs::path& name) {
    std::error_code ignored;
    return fs::exists(name, ignored);
  }

  void file(const std::string& path, const fs::path& name) {
    if (!exists(name)) note(path, name, "there is no such file or folder", hint_on_home(name));
  }

  void note(const std::string& path, const fs::path& name, std::string what, const std::string& hint = "") {
    if (!hint.empty()) what += "; " + hint;
    auto source = resolved_.sources.find(path);
    report.missing.push_back(
        {path, name.string(), std::move(what), source == resolved_.sources.end() ? "default" : source->second});
  }

  const Resolved& resolved_;
  std::set<std::string> seen_;
};

} // namespace

FileReport find_missing_files(const Resolved& resolved) {
  FileSearch search(resolved);
  search.model();
  for (const auto& stage : resolved.plan.stages) search.stage(stage);
  return std::move(search.report);
}

FileReport find_missing_files(const Resolved& resolved, const plan::Stage& stage) {
  FileSearch search(resolved);
  search.stage(stage);
  return std::move(search.report);
}

} // namespace fvlm::recipe
