#include "budget/model_tokens.h"

#include "base/error.h"
#include "base/file.h"
#include "base/text.h"
#include "data/different_token.h"
#include "model/weights/model_file.h"

#include <fmt/format.h>

#include <algorithm>

namespace fvlm::budget {
namespace {

namespace fs = std::filesystem;

// Nothing where one of the two has none.
std::optional<std::pair<fs::path, fs::path>> tokenizers_of(const plan::Model& recipe, const fs::path& model) {
  const auto parts = ModelFile::read(model).parts;
  const auto decoder = std::ranges::find(parts, Role::decoder, &ModelFile::Part::role);
  if (decoder == parts.end()) return {}; // whoever loads it says so
  const auto ours = fs::path(recipe.tokenizer_folder()) / "tokenizer.json",
             theirs = model / decoder->location / "tokenizer.json";
  std::error_code ignored;
  if (!fs::exists(ours, ignored) || !fs::exists(theirs, ignored)) return {};
  return std::pair(ours, theirs);
}

} // namespace

std::optional<std::string> different_token(const plan::Model& recipe, const fs::path& model) {
  const auto files = tokenizers_of(recipe, model);
  if (!files) return {};
  const std::string our_text = read_file(files->first), their_text = read_file(files->second);
  if (our_text == their_text) return {};
  const Tokenizer ours = Tokenizer::from_json(our_text, files->first.string()),
                  theirs = Tokenizer::from_json(their_text, files->second.string());
  return fvlm::different_token(ours, theirs, std::min(ours.size(), theirs.size()));
}

void require_teacher_tokens(const plan::Model& recipe, const fs::path& teacher, int64_t rows, int64_t own) {
  if (const auto different = different_token(recipe, teacher))
    throw Error(ErrorKind::data, "the teacher has another tokenizer: {} in the recipe's", *different)
        .at(teacher.string())
        .advise("take a teacher with the model's own tokenizer, of the same family");
  if (rows == own) return;
  const bool are_same = tokenizers_of(recipe, teacher).has_value();
  throw Error(ErrorKind::data, "the teacher's embedding has {} rows, and the model's {}", grouped(rows), grouped(own))
      .at(teacher.string())
      .advise(are_same ? fmt::format("their tokens are the same, and one of the two is padded with rows that have no "
                                     "token: give the teacher as many rows as the model, by transformers' "
                                     "resize_token_embeddings({}), and import it again",
                                     own)
                       : "take a teacher with the model's own tokenizer");
}

} // namespace fvlm::budget
