#include "cli/check_files.h"

#include "base/error.h"
#include "base/glob.h"
#include "budget/described_model.h"
#include "budget/model_tokens.h"
#include "data/preprocess.h"
#include "data/samples/sample_reader.h"
#include "data/shards/shard_form.h"
#include "data/shards/unpack.h"
#include "data/tokenizer.h"
#include "model/weights/model_directory.h"
#include "model/weights/resolve_model.h"
#include "model/weights/towers.h"
#include "model/weights/visual_rows.h"
#include "recipe/freeze.h"
#include "recipe/names_stage.h"

#include <fmt/format.h>

#include <filesystem>
#include <set>

namespace fvlm::cli {
namespace {

namespace fs = std::filesystem;

class FileCheck {
 public:
  explicit FileCheck(const recipe::Resolved& resolved)
      : resolved_(resolved), plan_(resolved.plan), report(recipe::find_missing_files(resolved)) {
    for (const auto& file : report.missing) missing_.insert(file.path);
  }

  void run() {
    model();
    for (const plan::Stage& stage : plan_.stages) {
      const std::string path = "stages" + recipe::key_part(stage.name);
      if (stage.from.find('/') != std::string::npos)
        attempt(path + ".from", stage.from, [&] { ModelDirectory::open(resolve_model(stage.from)); });
      for (size_t i = 0; i < stage.objective.size(); ++i)
        if (const std::string* folder = stage.objective[i]->teacher(); folder && !plan::names_stage(plan_, *folder))
          attempt(path + ".objective" + recipe::index_part(i + 1) + ".teacher", *folder,
                  [&] { teacher(resolve_model(*folder)); });
      mix(path + ".data", stage.data);
      for (const auto& set : stage.evaluation.sets)
        mix(path + ".evaluation.sets" + recipe::key_part(set.name) + ".data", set.data);
    }
  }

 private:
  const recipe::Resolved& resolved_;
  const plan::Plan& plan_;

 public:
  recipe::FileReport report;

 private:
  // Runs `work` and records an Error it throws as an unusable file. Does nothing where the file is already reported
  // missing.
  template <class Work>
  bool attempt(const std::string& path, const std::string& file, const Work& work) {
    if (missing_.contains(path)) return false;
    try {
      work();
      return true;
    } catch (const Error& error) {
      const bool names_file = error.where().find('/') != std::string::npos;
      note(path, names_file ? error.where() : file,
           error.advice().empty() ? error.what() : fmt::format("{} ({})", error.what(), error.advice()));
      return false;
    }
  }

  void note(const std::string& path, const std::string& file, std::string what) {
    std::string source = "default";
    for (std::string at = path; !at.empty(); at = at.substr(0, at.find_last_of(".[")))
      if (auto found = resolved_.sources.find(at); found != resolved_.sources.end()) {
        source = found->second;
        break;
      } else if (at.find_last_of(".[") == std::string::npos) {
        break;
      }
    report.missing.push_back({path, file, std::move(what), source, true});
  }

  bool decoder(const plan::Model& model, const std::string& path) {
    bool good = true;
    int64_t vocabulary_size = 0; // unknown
    const auto* decoder = std::get_if<std::string>(&model.decoder);
    const std::string tokenizer = model.tokenizer_folder();
    if (decoder)
      good &= attempt(path, *decoder, [&] {
        const auto opened = HuggingFaceFolder::open(*decoder);
        const auto config = read_decoder_config(opened.config, (fs::path(*decoder) / "config.json").string());
        bind(*opened.weights, stored_layout(layout_of(config), *opened.weights, opened.config));
        vocabulary_size = config.vocab_size;
      });
    good &= attempt(decoder ? path : path + ".tokenizer", tokenizer, [&] {
      const auto read = Tokenizer::from_file(fs::path(tokenizer) / "tokenizer.json");
      if (vocabulary_size == 0 && !decoder) vocabulary_size = read.size();
      if (vocabulary_size > 0) read.check_vocabulary_size(vocabulary_size, tokenizer);
    });
    if (path == "model.decoder") vocabulary_size_ = vocabulary_size;
    return good;
  }

  void model() {
    const auto& model = plan_.model;
    bool good = true;
    if (const auto* folder = std::get_if<std::string>(&model.vision))
      good = attempt("model.vision", *folder, [&] {
        const auto opened = HuggingFaceFolder::open(*folder);
        const auto layout = layout_of(read_vision_config(opened.config, (fs::path(*folder) / "config.json").string()));
        bind(*opened.weights, stored_layout(layout, *opened.weights, opened.config));
        frame_preparation(model); // throws for an image processor that the engine does not have
      });
    for (size_t i = 0; i < model.decoder_count(); ++i)
      good &= decoder(model.with_decoder(i), i == 0 ? "model.decoder" : "model.decoders" + recipe::index_part(i));
    if (!good) return;
    try {
      budget::describe(plan_);
      model_is_good_ = true;
    } catch (const Error& error) { // sizes that do not match; where() is then a path of the plan
      note(error.where(), "",
           error.advice().empty() ? error.what() : fmt::format("{} ({})", error.what(), error.advice()));
    }
  }

  void teacher(const fs::path& folder) const {
    const int64_t rows = ModelDirectory::open(folder).description().decoder().vocab_size;
    budget::require_teacher_tokens(plan_.model, folder, rows, vocabulary_size_ > 0 ? vocabulary_size_ : rows);
  }

  void mix(const std::string& path, const plan::Mix& mix) {
    for (size_t i = 0; model_is_good_ && i < plan_.model.decoder_count(); ++i) {
      const plan::Mix own = mix.for_decoder(i);
      const std::string folder = plan_.model.with_decoder(i).tokenizer_folder();
      attempt(path + (own.chat_template ? ".chat_template" : ""), folder, [&] {
        const auto tokenizer = Tokenizer::from_file(fs::path(folder) / "tokenizer.json");
        const SampleReader reader(own, tokenizer, frame_preparation(plan_.model), nullptr, visual_rows(plan_.model));
      });
    }
    if (mix.preprocessed) return;
    for (size_t i = 0; i < mix.sources.size(); ++i) {
      const auto& source = mix.sources[i];
      const std::string at = path + ".sources" + recipe::index_part(i + 1) + (source.text_only() ? ".text" : ".shards");
      for (const auto& pattern : source.patterns()) {
        Matches found;
        try {
          found = match_files(pattern);
        } catch (const Error&) { // already reported by find_missing_files()
          continue;
        }
        for (const auto& file : found.files)
          if (seen_.insert(file).second && fs::is_regular_file(file)) shard(at, file);
      }
    }
  }

  void shard(const std::string& path, const std::string& file) {
    try {
      const RetryingFile opened(file, {.tries = 1});
      if (!is_packed(opened)) form_of(file).check_head(opened);
    } catch (const Error& error) {
      note(path, file, error.what());
    }
  }

  std::set<std::string> missing_, seen_;
  bool model_is_good_ = false;
  int64_t vocabulary_size_ = 0; // of the decoder; 0: unknown
};

} // namespace

recipe::FileReport check_files(const recipe::Resolved& resolved) {
  FileCheck check(resolved);
  check.run();
  return std::move(check.report);
}

} // namespace fvlm::cli
