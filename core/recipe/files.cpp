#include "recipe/files.h"

#include "recipe/freeze.h"

#include <filesystem>

namespace fvlm::recipe {
namespace {

namespace fs = std::filesystem;

class Search {
 public:
  explicit Search(const Resolved& resolved) : resolved_(resolved) {}

  void model() {
    const auto& model = resolved_.plan.model;
    if (auto* folder = std::get_if<std::string>(&model.vision)) tower("model.vision", *folder);
    if (auto* folder = std::get_if<std::string>(&model.decoder)) tower("model.decoder", *folder);
    if (auto* fresh = std::get_if<plan::Llama>(&model.decoder))
      file("model.decoder.tokenizer", fs::path(fresh->tokenizer) / "tokenizer.json");
  }

  void stage(const plan::Stage& stage) {
    std::string path = "stages" + key_part(stage.name);
    if (stage.from.find('/') != std::string::npos) file(path + ".from", stage.from);
    mix(path + ".data", stage.data);
    for (const auto& set : stage.evaluation.sets)
      mix(path + ".evaluation.sets" + key_part(set.name) + ".data", set.data);
    for (size_t i = 0; i < stage.objective.size(); ++i)
      if (auto* kl = std::get_if<plan::Kl>(&stage.objective[i]))
        file(path + ".objective" + index_part(i + 1) + ".teacher", kl->teacher);
  }

  std::vector<MissingFile> missing;

 private:
  void tower(const std::string& path, const fs::path& folder) {
    file(path, folder / "config.json");
    std::error_code ignored;
    bool weights = fs::exists(folder / "model.safetensors", ignored) ||
                   fs::exists(folder / "model.safetensors.index.json", ignored);
    if (!weights) note(path, folder / "model.safetensors");
  }

  void mix(const std::string& path, const plan::Mix& mix) {
    if (mix.preprocessed) return file(path + ".preprocessed", *mix.preprocessed);
    for (size_t i = 0; i < mix.sources.size(); ++i) {
      const auto& source = mix.sources[i];
      std::string at = path + ".sources" + index_part(i + 1) + (source.text.empty() ? ".shards" : ".text");
      for (const auto& pattern : source.text.empty() ? source.shards : source.text) {
        size_t wild = pattern.find_first_of("*?[{");
        if (wild == std::string::npos)
          file(at, pattern);
        else if (size_t slash = pattern.rfind('/', wild); slash != std::string::npos && slash > 0)
          file(at, pattern.substr(0, slash));
      }
    }
  }

  void file(const std::string& path, const fs::path& name) {
    std::error_code ignored;
    if (!fs::exists(name, ignored)) note(path, name);
  }

  void note(const std::string& path, const fs::path& name) {
    auto source = resolved_.sources.find(path);
    missing.push_back({path, name.string(), source == resolved_.sources.end() ? "default" : source->second});
  }

  const Resolved& resolved_;
};

} // namespace

std::vector<MissingFile> missing_files(const Resolved& resolved) {
  Search search(resolved);
  search.model();
  for (const auto& stage : resolved.plan.stages) search.stage(stage);
  return std::move(search.missing);
}

} // namespace fvlm::recipe
