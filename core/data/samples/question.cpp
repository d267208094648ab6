#include "data/samples/question.h"

#include "base/error.h"

#include <algorithm>

namespace fvlm {
namespace {

// A form with the context and the question in their places.
std::string filled(std::string_view form, std::string_view context, std::string_view question) {
  std::string text;
  while (!form.empty()) {
    const size_t at = form.find('{');
    text += form.substr(0, at);
    if (at == std::string_view::npos) break;
    form.remove_prefix(at);
    const auto take = [&](std::string_view mark, std::string_view value) {
      if (!form.starts_with(mark)) return false;
      text += value;
      form.remove_prefix(mark.size());
      return true;
    };
    if (take("{context}", context) || take("{question}", question)) continue;
    text += form.front();
    form.remove_prefix(1);
  }
  return text;
}

} // namespace

std::string_view whole_characters(std::string_view text, size_t most) {
  if (text.size() <= most) return text;
  while (most > 0 && (static_cast<unsigned char>(text[most]) & 0xC0) == 0x80) --most;
  return text.substr(0, most);
}

std::optional<std::string> source_of(const plan::QuestionForm& form, const Question& question, int64_t max_bytes) {
  std::string source = filled(form.source, question.context, question.question);
  const auto most = static_cast<size_t>(max_bytes);
  if (source.size() <= most) return source;
  const size_t excess = source.size() - most;
  if (excess > question.context.size()) return {};
  const auto kept = whole_characters(question.context, question.context.size() - excess);
  source = filled(form.source, kept, question.question);
  if (source.size() > most) return {}; // the form has the context not at all, or more than once
  return source;
}

TokenId QuestionEncoder::special(const std::string& token, const char* key) const {
  const auto id = tokenizer_.special_id(token);
  if (!id)
    throw Error(ErrorKind::data, "the tokenizer has no special token '{}'", token)
        .advise("questions.{} of the mix names one of the decoder's own", key);
  return *id;
}

void QuestionEncoder::require_tokens() const {
  if (!form_.bos.empty()) special(form_.bos, "bos");
  special(form_.eos, "eos");
}

void QuestionEncoder::append(const std::vector<TokenId>& ids, bool answer, SampleText& to) const {
  to.ids.insert(to.ids.end(), ids.begin(), ids.end());
  to.answer_mask.resize(to.ids.size(), answer);
}

void QuestionEncoder::append_begin(plan::QuestionForm::Begin place, SampleText& to) const {
  if (!form_.bos.empty() && form_.bos_place == place) append({special(form_.bos, "bos")}, false, to);
}

std::vector<TokenId> QuestionEncoder::answer(const std::string& answer) const {
  const size_t spaces = form_.anchor.size() - (form_.anchor.find_last_not_of(' ') + 1);
  std::vector<TokenId> ids = tokenizer_.encode(std::string(spaces, ' ') + answer, SpecialTokens::as_text);
  ids.resize(std::min(ids.size(), static_cast<size_t>(form_.max_answer_tokens)));
  ids.push_back(special(form_.eos, "eos"));
  return ids;
}

void QuestionEncoder::append_answer(const std::string& answer, SampleText& to) const {
  append(tokenizer_.encode(form_.anchor.substr(0, form_.anchor.find_last_not_of(' ') + 1)), false, to);
  append(this->answer(answer), true, to);
}

SampleText QuestionEncoder::behind_rows(int64_t rows, const std::string& answer) const {
  SampleText text;
  append_begin(plan::QuestionForm::Begin::first, text);
  append(std::vector<TokenId>(static_cast<size_t>(rows), visual_placeholder), false, text);
  append_begin(plan::QuestionForm::Begin::after_prefix, text);
  append_answer(answer, text);
  text.placeholders = rows;
  return text;
}

SampleText QuestionEncoder::behind_text(const std::string& prompt, const std::string& source,
                                        const std::string& answer) const {
  SampleText text;
  if (!form_.bos.empty()) append({special(form_.bos, "bos")}, false, text);
  const size_t at = prompt.find(source_mark);
  append(tokenizer_.encode(prompt.substr(0, at)), false, text);
  if (at != std::string::npos) {
    std::vector<TokenId> ids = tokenizer_.encode(source, SpecialTokens::as_text);
    if (form_.max_source_tokens) ids.resize(std::min(ids.size(), static_cast<size_t>(*form_.max_source_tokens)));
    append(ids, false, text);
    append(tokenizer_.encode(prompt.substr(at + source_mark.size())), false, text);
  }
  append_answer(answer, text);
  return text;
}

} // namespace fvlm
