#include "cli/draft_options.h"

#include "base/error.h"
#include "cli/execution_options.h"
#include "cli/named_model.h"
#include "data/different_token.h"
#include "model/weights/model_file.h"

#include <fmt/format.h>

#include <algorithm>

namespace fvlm::cli {
namespace {

constexpr int64_t most_drafts = 64, usual_drafts_of_a_model = 4;

void require_same_tokens(const std::filesystem::path& model, const std::filesystem::path& draft) {
  const auto ours = tokenizer_of(model), theirs = tokenizer_of(draft);
  if (ours.has_value() != theirs.has_value())
    throw Error(ErrorKind::data, "only one of the model and its draft model has a tokenizer.json, so that their tokens "
                                 "cannot be compared")
        .at((ours ? draft : model).string())
        .advise("copy the tokenizer.json of its decoder there, if it was trained with the same one");
  if (ours)
    if (const auto different = different_token(*ours, *theirs, std::max(ours->size(), theirs->size())))
      throw Error(ErrorKind::data, "the draft model has another tokenizer: {} in the model that it drafts for",
                  *different)
          .at(draft.string())
          .advise("draft by a smaller model of the same family");
}

} // namespace

std::optional<Tokenizer> tokenizer_of(const std::filesystem::path& model) {
  const auto file = decoder_folder(model) / "tokenizer.json";
  if (!std::filesystem::exists(file)) return std::nullopt;
  return Tokenizer::from_file(file);
}

Options& with_draft_options(Options& options) {
  return options
      .value("speculate", "N",
             "check up to N tokens a step that are supposed to follow: those that followed earlier where the text "
             "repeats itself, or those of --draft. The answer is the same, and sooner where they are right; default 0, "
             "with --draft 4")
      .value("draft", "MODEL",
             "a smaller model with the same tokenizer, which proposes what --speculate checks; it reads text alone");
}

int64_t draft_tokens_of(const ParsedOptions& parsed) {
  const bool has_model = parsed.value("draft").has_value();
  const int64_t tokens = parsed.integer_or("speculate", has_model ? usual_drafts_of_a_model : 0, 0, most_drafts);
  if (has_model && tokens == 0)
    throw Error(ErrorKind::usage, "--draft has no effect with --speculate 0").advise("leave one of them out");
  return tokens;
}

void use_draft_model(const ParsedOptions& parsed, const std::filesystem::path& model, infer::Generator& generator) {
  if (const auto named = parsed.value("draft")) {
    const std::filesystem::path draft = model_named(*named);
    require_same_tokens(model, draft);
    generator.use_draft_model(draft, answering_execution_of(parsed));
  }
  generator.check_drafts(draft_tokens_of(parsed));
}

} // namespace fvlm::cli
