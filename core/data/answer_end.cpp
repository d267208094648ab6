#include "data/answer_end.h"

#include "base/error.h"
#include "data/chat.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <vector>

namespace fvlm {

std::optional<std::string> missing_answer_end(const Tokenizer& tokenizer, const std::string& name,
                                              std::span<const int64_t> ends) {
  const std::vector<Turn> turns = {{"user", "How many?"}, {"assistant", "Two."}};
  ChatTokens tokens;
  try {
    tokens = ChatTemplate(tokenizer, {}, name).encode(turns, "");
  } catch (const Error&) {
    return {}; // it takes other conversations alone, and the stage's own say what is wrong with it
  }
  for (size_t i = 0; i < tokens.ids.size(); ++i)
    if (tokens.answer_mask[i] && std::find(ends.begin(), ends.end(), tokens.ids[i]) != ends.end()) return {};
  std::vector<std::string> words;
  for (const int64_t end : ends)
    if (end >= 0 && end < static_cast<int64_t>(tokenizer.size()))
      words.push_back(fmt::format("'{}'", tokenizer.decode(std::array{static_cast<TokenId>(end)})));
  return fmt::format("the chat template '{}' of {} ends no answer with a token at which generation stops ({}), and the "
                     "model would learn to talk on\n  write {{{{ eos_token }}}} behind the assistant's content in the "
                     "template, within {{% generation %}} where it has that",
                     name, tokenizer.folder().string(),
                     words.empty() ? "there is none" : fmt::format("{}", fmt::join(words, ", ")));
}

} // namespace fvlm
