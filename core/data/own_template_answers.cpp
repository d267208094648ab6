// Which parts of a rendered conversation are answers, and which of these are learnt.
#include "base/error.h"
#include "data/own_template.h"

#include <algorithm>

namespace fvlm {
namespace {

// An answer is found by rendering what is before it. Of a prompt, where answers are only tokenized apart, so much of
// that is enough, in its lengths: all of a long one would take a time of its square.
constexpr size_t most_renderings = 16;

Error hidden_answer(int64_t number, const std::string& where) {
  return Error(ErrorKind::data,
               "the chat template does not show where answer {} of the conversation is: rendered up to there, it is "
               "not how the whole begins",
               number)
      .at(where);
}

} // namespace

// A generation block may begin behind the space that a prompt lacks, as in LLaVA's "ASSISTANT: " and "ASSISTANT:". A
// model has to say that space, so that its answers begin with it.
void OwnTemplate::begin_behind_prompts(std::span<const Turn> turns, bool prompt, const TemplateValues& values,
                                       ChatText& chat) const {
  size_t rendered = 0;
  for (size_t i = 0; i < turns.size() && (!prompt || rendered <= most_renderings * chat.text.size()); ++i) {
    if (turns[i].role != "assistant") continue;
    std::string before;
    try {
      before = render_plainly(turns.first(i), true, values).text;
      rendered += before.size();
    } catch (const Error&) { // it refuses a prompt here, and nobody will ask for an answer
      continue;
    }
    if (!chat.text.starts_with(before)) continue;
    const auto answer = std::find_if(chat.answers.begin(), chat.answers.end(),
                                     [&](const ChatAnswer& each) { return each.begin >= before.size(); });
    if (answer == chat.answers.end()) continue;
    if (chat.text.find_first_not_of(" \t\n", before.size()) >= answer->begin) answer->begin = before.size();
  }
}

// Of generation blocks: one for each answer in turn, or those that the conversation up to an answer has more than the
// one before it.
void OwnTemplate::mark_unlearnt(std::span<const Turn> turns, const TemplateValues& values,
                                std::vector<ChatAnswer>& answers) const {
  const auto is_answer = [](const Turn& turn) { return turn.role == "assistant"; };
  if (std::ranges::all_of(turns, [&](const Turn& turn) { return !is_answer(turn) || turn.is_learnt; })) return;
  const bool has_one_each = std::ranges::count_if(turns, is_answer) == std::ssize(answers);
  size_t marked = 0;
  int64_t number = 0;
  for (size_t i = 0; i < turns.size(); ++i) {
    if (!is_answer(turns[i])) continue;
    ++number;
    size_t end = marked + 1;
    if (!has_one_each) {
      const auto before = render_plainly(turns.first(i + 1), false, values).answers;
      end = before.size();
      if (end < marked || end > answers.size() || (end > 0 && before.back().end != answers[end - 1].end))
        throw hidden_answer(number, where_)
            .advise("write one {% generation %} block around each of the assistant's texts in the template, or leave "
                    "out what says that an answer is not learnt");
    }
    for (; marked < end; ++marked) answers[marked].is_learnt = turns[i].is_learnt;
  }
}

std::vector<ChatAnswer> OwnTemplate::find_answers(std::span<const Turn> turns, bool prompt, const std::string& text,
                                                  const TemplateValues& values) const {
  std::vector<ChatAnswer> answers;
  int64_t number = 0;
  size_t rendered = 0;
  for (size_t i = 0; i < turns.size() && (!prompt || rendered <= most_renderings * text.size()); ++i) {
    if (turns[i].role != "assistant") continue;
    ++number;
    const auto found = find_answer(turns.first(i + 1), text, values);
    rendered += 2 * (found ? found->end : text.size());
    if (found)
      answers.push_back(*found);
    else if (turns[i].is_learnt)
      throw hidden_answer(number, where_)
          .advise(
              "write {% generation %} and {% endgeneration %} around the assistant's text in the template, or "
              "train on conversations of one answer, or on the last answer of each: mask_history = true in the mix");
  }
  return answers;
}

// The last turn is what the conversation up to it has beyond the prompt for it.
std::optional<ChatAnswer> OwnTemplate::find_answer(std::span<const Turn> turns, const std::string& text,
                                                   const TemplateValues& values) const {
  const bool is_learnt = turns.back().is_learnt;
  try {
    const std::string before = render_plainly(turns.first(turns.size() - 1), true, values).text;
    const std::string whole = render_plainly(turns, false, values).text;
    if (!whole.starts_with(before) || !text.starts_with(whole)) return {};
    return ChatAnswer{before.size(), whole.size(), is_learnt};
  } catch (const Error&) { // it refuses a conversation that ends here
    if (is_learnt) throw;
    return {};
  }
}

} // namespace fvlm
