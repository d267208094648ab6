// The texts of a teacher that has a prompt of its own: the sample's conversations with another first question, or the
// source of a question as text.
#include "base/error.h"
#include "base/text.h"
#include "data/samples/sample_reader.h"

#include <nlohmann/json.hpp>

#include <algorithm>

namespace fvlm {
namespace {

// With the text, or the number, of a field in place of each {name}.
std::string filled_in(const std::string& prompt, const Parts& parts) {
  std::string text;
  size_t at = 0;
  for (size_t open = prompt.find('{'); open != std::string::npos; open = prompt.find('{', at)) {
    const size_t close = prompt.find('}', open);
    if (close == std::string::npos) break;
    text += prompt.substr(at, open - at);
    const std::string name = prompt.substr(open + 1, close - open - 1);
    const nlohmann::json& value = parts.need(name);
    text += value.is_number() ? value.dump() : text_in(value, parts.name(name));
    at = close + 1;
  }
  return text + prompt.substr(at);
}

std::vector<TokenId> answer_of(const SampleText& text) {
  std::vector<TokenId> ids;
  for (size_t i = 0; i < text.ids.size(); ++i)
    if (text.answer_mask[i]) ids.push_back(text.ids[i]);
  return ids;
}

} // namespace

std::vector<SampleText> SampleReader::teacher_texts(const Parts& parts, const SampleContent& content) const {
  if (!content.tokens.empty()) broken("it is tokenized, and a teacher's prompt needs a text without tokens");
  const std::string prompt = filled_in(*mix_.teacher_prompt, parts);
  std::vector<SampleText> texts;
  for (Conversation talk : content.conversations) {
    const auto first = std::ranges::find(talk.turns, "user", &Turn::role);
    if (first == talk.turns.end()) broken("it has no user turn, which the teacher's prompt replaces");
    first->text = prompt;
    first->images = 0;
    ChatTokens tokens = chat_.encode(talk.turns, talk.system, talk.tools.get());
    texts.push_back({std::move(tokens.ids), std::move(tokens.answer_mask)});
  }
  return texts;
}

SampleText SampleReader::teacher_text(const std::string& source, const std::string& answer) const {
  if (mix_.teacher_prompt->find(source_mark) == std::string::npos)
    throw Error(ErrorKind::data, "it has a context and a question, and the mix's teacher_prompt has no {source}, which "
                                 "stands for them")
        .advise("write {source} into teacher_prompt where the teacher is to read the context and the question");
  return questions_.behind_text(*mix_.teacher_prompt, source, answer);
}

// Both answers are of the same tokens: token t of one belongs to token t of the other.
void SampleReader::fit_teacher_texts(Sample& sample) const {
  for (size_t i = 0; i < sample.teacher_texts.size(); ++i) {
    SampleText& text = sample.teacher_texts[i];
    const auto answer = answer_of(sample.texts[i]);
    auto own = answer_of(text);
    for (; own.size() > answer.size(); text.answer_mask.pop_back(), text.ids.pop_back())
      if (text.answer_mask.back()) own.pop_back();
    if (own != answer)
      broken(fmt::format("the chat template writes the answer in other tokens behind the teacher's prompt: {} and {}",
                         counted(std::ssize(own), "token"), counted(std::ssize(answer), "token")));
    if (std::ranges::any_of(text.ids, [](TokenId id) { return id < 0; }))
      broken("the teacher's prompt has a place for an image, and a teacher with a prompt of its own reads none");
    if (text.tokens() > mix_.max_text_tokens)
      sample.dropped = fmt::format("a teacher's text of {} tokens, more than max_text_tokens = {}", text.tokens(),
                                   mix_.max_text_tokens);
  }
}

} // namespace fvlm
