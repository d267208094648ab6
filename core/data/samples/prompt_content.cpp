#include "data/samples/prompt_content.h"

#include "base/error.h"
#include "data/samples/other_names.h"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <initializer_list>
#include <span>
#include <utility>

namespace fvlm {
namespace {

using Json = nlohmann::json;
using Names = std::initializer_list<const char*>;

// Stands for an answer that is missing, since the formats of samples have one, and is removed with its turn.
constexpr const char* no_answer = "-";

bool has_any(const Parts& parts, Names names) {
  return std::ranges::any_of(names, [&](const char* name) { return parts.has(name); });
}

// The first of these keys that has a text; null: none.
const char* text_among(const Json& sample, std::span<const char* const> keys) {
  const auto found =
      std::ranges::find_if(keys, [&](const char* key) { return sample.contains(key) && sample[key].is_string(); });
  return found == keys.end() ? nullptr : *found;
}

bool is_answer(const Json& turn) {
  if (!turn.is_object()) return false;
  const Json role = turn.value("role", turn.value("from", Json()));
  return role == "assistant" || role == "gpt";
}

Json turn_of_no_answer(const Json& like) {
  if (like.is_object() && like.contains("from") && !like.contains("role"))
    return {{"from", "gpt"}, {"value", no_answer}};
  return {{"role", "assistant"}, {"content", no_answer}};
}

class PromptSample {
 public:
  PromptSample(Json& sample, plan::Source& source) : sample_(sample), source_(source) {}

  // Gives a question or an answer of another name the name of its part.
  void name_parts() {
    const Parts parts(sample_, source_.fields);
    const char* const question = text_among(sample_, question_keys);
    const char* const answer = text_among(sample_, answer_keys);
    const bool has_form = has_any(parts, {"messages", "conversations", "texts", "choices", "answers", "context"});
    if (question && !parts.has("user")) source_.fields.emplace("user", question);
    if (answer && parts.has("user") && !parts.has("assistant") && !has_form && !is_pair(parts))
      source_.fields.emplace("assistant", answer);
  }

  // Puts an answer behind a sample that has none. Returns whether it did.
  bool complete(bool has_caption, bool may_ask_nothing) {
    const Parts parts(sample_, source_.fields);
    if (is_pair(parts)) return false;
    if (parts.has("choices")) return !parts.has("answer");
    if (parts.has("context") && !has_any(parts, {"answers", "answer"})) {
      sample_[parts.key("answers")] = no_answer;
      return true;
    }
    for (const char* part : {"messages", "conversations"})
      if (const Json* turns = parts.find(part)) {
        if (!turns->is_array() || turns->empty() || is_answer(turns->back())) return false;
        const Json turn = turn_of_no_answer(turns->back());
        sample_[parts.key(part)].push_back(turn);
        return true;
      }
    if (has_any(parts, {"texts", "assistant", "answers", "caption"}) || has_caption) return false;
    const bool is_list = sample_.contains("prompt") && sample_["prompt"].is_array() && !sample_["prompt"].empty();
    if (is_list) {
      sample_["messages"] = sample_["prompt"];
      const bool has_answer = sample_.contains("completion") && sample_["completion"].is_array();
      const Json no_answers = Json::array({turn_of_no_answer(sample_["prompt"].back())});
      for (const Json& turn : has_answer ? sample_["completion"] : no_answers) sample_["messages"].push_back(turn);
      return !has_answer;
    }
    if (!parts.has("user") && !may_ask_nothing)
      throw Error(ErrorKind::data, "it has no question: neither messages, conversations, user nor prompt")
          .advise("--prompt asks samples that have none, and --field user=KEY says which key has the question");
    sample_[parts.key("assistant")] = no_answer;
    return true;
  }

 private:
  static bool is_pair(const Parts& parts) {
    return has_any(parts, {"chosen", "rejected", "chosen_assistant", "rejected_assistant"});
  }

  Json& sample_;
  plan::Source& source_;
};

} // namespace

PromptContent parse_prompt_content(nlohmann::json sample, const std::optional<std::string>& caption_file,
                                   plan::Source source, const plan::Mix& mix, const plan::VisualRows& visual_rows) {
  {
    const Parts given(sample, source.fields);
    if (has_any(given, {"token_ids", "loss_mask"})) broken("it is token ids, and a prompt is a text");
    if (given.has("context") && !is_asked_in_chat(mix, visual_rows))
      broken("it has a context, which `eval` and `generate --context` ask about");
  }
  PromptSample prompt(sample, source);
  prompt.name_parts();
  const bool lacks_answer = prompt.complete(caption_file.has_value(), mix.prompts != plan::Mix::default_prompts());
  SampleContent content = parse_sample_content(Parts(sample, source.fields), caption_file, source, mix, visual_rows);
  PromptContent out;
  out.conversation = std::move(content.conversations.at(static_cast<size_t>(content.correct_choice.value_or(0))));
  out.objects = std::move(content.objects);
  std::vector<Turn>& turns = out.conversation.turns;
  if (turns.back().role == "assistant") {
    if (!lacks_answer && !turns.back().text.empty()) out.expected = std::move(turns.back().text);
    turns.pop_back();
  }
  if (turns.empty() || turns.back().role == "assistant") broken("nothing is asked before its last answer");
  return out;
}

} // namespace fvlm
