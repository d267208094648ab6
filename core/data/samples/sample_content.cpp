#include "data/samples/sample_content.h"

#include "base/error.h"
#include "base/json.h"
#include "base/text.h"
#include "data/samples/input_content.h"
#include "data/samples/objects.h"
#include "data/samples/other_names.h"
#include "data/samples/supporting_sentences.h"
#include "data/samples/turns.h"
#include "data/visual_marks.h"
#include "recipe/placeholders.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <initializer_list>

namespace fvlm {
namespace {

using Json = nlohmann::json;

constexpr size_t max_choices = 100;
constexpr size_t max_total_bytes = size_t{4} << 20; // of all conversations together

std::string prompt_of(const std::string& source, const plan::Mix& mix) {
  static const auto usual = plan::Mix::default_prompts();
  for (const auto* prompts : {&mix.prompts, &usual})
    for (const auto& name : {source, std::string("default")})
      if (auto found = prompts->find(name); found != prompts->end()) return found->second;
  return "";
}

class Reader {
 public:
  Reader(const Parts& parts, const std::optional<std::string>& caption_file, const plan::Source& source,
         const plan::Mix& mix, const plan::VisualRows& visual_rows)
      : parts_(parts), caption_file_(caption_file), mix_(mix), keeps_marks_(visual_rows.in_place),
        asks_in_chat_(is_asked_in_chat(mix, visual_rows)) {
    telling_.source = parts.text("source").value_or(source.name);
    telling_.frame_count = parts.count("frame_count");
    telling_.is_desirable = judgement();
    if (const Json* objects = parts.find("objects"); objects && (parts.is_mapped("objects") || is_objects(*objects)))
      telling_.objects = parse_objects(*objects, parts.name("objects"));
  }

  SampleContent read() {
    if (mix_.documents && parts_.has("text")) return document(parts_.need_text("text"), parts_.name("text"));
    const Form* form = form_told([&](const std::string& part) { return parts_.is_mapped(part); });
    if (!form) form = form_of(parts_);
    if (form)
      (this->*form->read)();
    else if (caption_file_ && mix_.documents)
      return document(*caption_file_, "KEY.txt");
    else if (caption_file_)
      add(parts_.text("user").value_or(""), *caption_file_, "KEY.txt");
    else
      throw without_text();
    if (parts_.has("answers") && telling_.answers.empty() && !telling_.question) telling_.answers = answers();
    return std::move(telling_);
  }

  static bool has_form(const Parts& parts) { return form_of(parts) != nullptr; }
  static bool is_caption(const Parts& parts) { return form_of(parts) && form_of(parts)->read == &Reader::caption; }

 private:
  struct Form {
    std::vector<std::string> parts; // any of which tells it
    void (Reader::*read)();
  };

  // That which the fields of the sample tell; null: none. What a completion continues may have any name but one.
  static const Form* form_of(const Parts& parts) {
    return form_told(
        [&](const std::string& part) { return parts.has(part) && (part != "completion" || parts.has("prompt")); });
  }

  // The first form of which `told` is true for a part; null: none.
  template <class Told>
  static const Form* form_told(const Told& told) {
    static const std::array<Form, 12> forms = {{{{"token_ids", "loss_mask"}, &Reader::tokens},
                                                {{"choices"}, &Reader::choices},
                                                {{"chosen_assistant", "rejected_assistant"}, &Reader::pair},
                                                {{"chosen", "rejected"}, &Reader::pair_of_turns},
                                                {{"messages"}, &Reader::messages},
                                                {{"conversations"}, &Reader::conversations},
                                                {{"texts"}, &Reader::questions_and_answers},
                                                {{"completion"}, &Reader::completion},
                                                {{"assistant"}, &Reader::assistant},
                                                {{"context"}, &Reader::question},
                                                {{"answers"}, &Reader::most_frequent_answer},
                                                {{"caption"}, &Reader::caption}}};
    const auto found = std::find_if(forms.begin(), forms.end(), [&](const Form& form) {
      return std::any_of(form.parts.begin(), form.parts.end(), told);
    });
    return found == forms.end() ? nullptr : &*found;
  }

  SampleContent document(std::string text, const std::string& name) {
    if (trimmed(text).empty()) broken(fmt::format("{} is empty, and there is nothing to learn", name));
    telling_.document = std::move(text);
    return std::move(telling_);
  }

  Error without_text() const {
    Error error(ErrorKind::data,
                "it has no text: neither assistant, answers, caption, messages, conversations, a pair, choices, "
                "token_ids nor KEY.txt");
    const Parts::Fields fields = fields_of_other_names(parts_);
    if (fields.empty()) return error;
    return error.advise("the source's {} says which keys are its text", written_fields(fields));
  }

  std::string user() const { return user_text(parts_); }

  // `label` of TRL and ms-swift, `kto_tag` of LLaMA-Factory; 0 and 1 beside TRL's prompt and completion. Other numbers,
  // which the recipe does not name, are something else: a class, for example.
  std::optional<bool> judgement() const {
    for (const char* part : {"label", "kto_tag"}) {
      const Json* found = parts_.find(part);
      if (!found) continue;
      if (found->is_boolean()) return found->get<bool>();
      const bool is_number = *found == 0 || *found == 1;
      if (parts_.is_mapped(part) && !is_number) wrong_type(parts_.name(part), *found, "true or false");
      if (is_number && (parts_.is_mapped(part) || (parts_.has("prompt") && parts_.has("completion"))))
        return *found == 1;
    }
    return std::nullopt;
  }

  // A question without its marks, unless placeholders take their places; an empty one takes the prompt of its source.
  std::string asked(const std::string& question) const {
    std::string text = without_marks(question);
    const bool is_empty = trimmed(text).empty();
    if (!keeps_marks_ || text == question) return is_empty ? prompt_of(telling_.source, mix_) : std::move(text);
    return is_empty ? trimmed(question) + "\n" + prompt_of(telling_.source, mix_) : question;
  }

  void add(const std::string& user, std::string answer, const std::string& name) {
    if (trimmed(answer).empty()) broken(fmt::format("{} is empty, and there is nothing to learn", name));
    Conversation talk = begun();
    ask(user, talk);
    talk.turns.push_back({"assistant", std::move(answer)});
    add(std::move(talk));
  }

  void add(Conversation talk) {
    if (mix_.mask_history) mask_history(talk.turns);
    for (const auto& turn : talk.turns) bytes_ += turn.text.size();
    if (bytes_ > max_total_bytes) broken(fmt::format("its texts are longer than {} bytes in all", max_total_bytes));
    telling_.conversations.push_back(std::move(talk));
  }

  static void mask_history(std::vector<Turn>& turns) {
    const auto is_answer = [](const Turn& turn) { return turn.role == "assistant"; };
    const auto last = std::find_if(turns.rbegin(), turns.rend(), is_answer);
    for (auto turn = last; turn != turns.rend(); ++turn)
      if (turn != last) turn->is_learnt = false;
  }

  void assistant() { add(user(), parts_.need_text("assistant"), parts_.name("assistant")); }

  // A question under another name may be one that the caption does not answer, or what an image was made from.
  void caption() {
    const bool has_user = parts_.is_mapped("user") || parts_.has("user");
    const std::string question = has_user || parts_.is_mapped("caption") ? "" : question_part(parts_);
    if (!question.empty()) {
      Parts::Fields fields = fields_of_other_names(parts_);
      if (!fields.contains("user")) fields = {{"user", question}};
      throw Error(ErrorKind::data, "it has '{}' and 'caption', and no 'user'", question)
          .advise("the source's {} asks it, and {} learns the caption alone", written_fields(fields),
                  written_fields({{"caption", "caption"}}));
    }
    add(has_user ? user() : "", parts_.need_text("caption"), parts_.name("caption"));
  }

  // A list of texts, or of objects with an "answer", as VQAv2 has them.
  std::vector<std::string> answers() const {
    std::vector<std::string> all;
    for (const Json& each : list("answers")) {
      const std::string name = fmt::format("number {} of {}", all.size(), parts_.name("answers"));
      const bool object = each.is_object() && each.contains("answer");
      all.push_back(text_in(object ? each["answer"] : each, name));
    }
    return all;
  }

  // Of several that are given equally often, the first.
  static std::string most_frequent(const std::vector<std::string>& all) {
    const auto count = [&](const std::string& answer) { return std::count(all.begin(), all.end(), answer); };
    return *std::max_element(all.begin(), all.end(), [&](const std::string& one, const std::string& other) {
      return count(one) < count(other);
    });
  }

  void most_frequent_answer() { add(user(), most_frequent(answers()), parts_.name("answers")); }

  // A text, or the paragraphs of HotpotQA.
  std::string context() const {
    const Json& context = parts_.need("context");
    if (context.is_string()) return context.get<std::string>();
    return supporting_sentences(context, parts_.find("supporting_facts"), parts_.name("context"));
  }

  // The answers are a list, the { text = [...] } of SQuAD, or a single one, as HotpotQA has it under `answer`.
  void question() {
    telling_.question = Question{context(), parts_.need_text("question"), ""};
    const Json& given = parts_.need(parts_.has("answers") || !parts_.has("answer") ? "answers" : "answer");
    const Json* all = given.is_object() && given.contains("text") ? &given["text"] : &given;
    std::vector<std::string>& kept = telling_.answers;
    if (all->is_string())
      kept = {all->get<std::string>()};
    else if (all->is_array())
      for (const Json& each : *all)
        kept.push_back(text_in(each, fmt::format("number {} of {}", kept.size(), parts_.name("answers"))));
    else
      wrong_type(parts_.name("answers"), given, "a list");
    std::erase_if(kept, [](const std::string& answer) { return trimmed(answer).empty(); });
    if (kept.empty()) return;
    telling_.question->answer = trimmed(most_frequent(kept));
    if (!asks_in_chat_) return;
    const auto asked = source_of(plan::QuestionForm(), *telling_.question, max_total_bytes);
    if (!asked) broken(fmt::format("its question is longer than {} bytes", max_total_bytes));
    add(trimmed(*asked), telling_.question->answer, parts_.name("answers"));
    telling_.question.reset();
  }

  void pair() {
    for (const char* part : {"chosen_assistant", "rejected_assistant"})
      add(user(), parts_.need_text(part), parts_.name(part));
  }

  const Json& list(const std::string& part) const {
    const Json& found = parts_.need(part);
    if (!found.is_array()) wrong_type(parts_.name(part), found, "a list");
    if (found.empty()) broken(fmt::format("{} is an empty list", parts_.name(part)));
    return found;
  }

  void choices() {
    const Json& options = list("choices");
    if (options.size() < 2 || options.size() > max_choices)
      broken(fmt::format("{} has {} options, and 2 to {} were expected", parts_.name("choices"), options.size(),
                         max_choices));
    std::vector<std::string> texts;
    for (size_t i = 0; i < options.size(); ++i) {
      auto name = fmt::format("option {} of {}", i, parts_.name("choices"));
      texts.push_back(text_in(options[i], name));
      add(user(), texts.back(), name);
    }
    if (const Json* answer = parts_.find("answer")) telling_.correct_choice = right_one(*answer, texts);
  }

  // Its text, else its letter, or its number from 0.
  int64_t right_one(const Json& answer, const std::vector<std::string>& texts) const {
    auto count = static_cast<int64_t>(texts.size());
    std::string name = parts_.name("answer");
    if (answer.is_number_integer()) {
      auto number = answer.is_number_unsigned() && answer.get<uint64_t>() > max_choices ? -1 : answer.get<int64_t>();
      if (number < 0 || number >= count)
        broken(fmt::format("{} is {}, and the options are numbered 0 to {}", name, answer.dump(), count - 1));
      return number;
    }
    const std::string& text = text_in(answer, name);
    for (int pass = 0; pass < 2; ++pass) // as it stands, then without the space around it
      for (int64_t i = 0; i < count; ++i)
        if (pass == 0 ? texts[i] == text : trimmed(texts[i]) == trimmed(text)) return i;
    std::string letter = trimmed(text);
    if (letter.size() == 3 && letter[0] == '(' && letter[2] == ')') letter = letter.substr(1, 1);
    if (letter.size() == 2 && (letter[1] == '.' || letter[1] == ')')) letter.pop_back();
    if (letter.size() == 1) {
      int64_t number = std::toupper(static_cast<unsigned char>(letter[0])) - 'A';
      if (number >= 0 && number < count) return number;
    }
    broken(
        fmt::format("{} is none of the {} options: neither the number, the letter nor the text of one", name, count));
  }

  Turn turn(const Json& value, const std::string& name) const {
    Turn made = parse_turn(value, name, keeps_marks_);
    if (made.role == "user") made.text = asked(made.text);
    return made;
  }

  // Appends turns, of which a system turn may be the first.
  void append(Conversation& talk, const Json& turns, const std::string& name) const {
    for (size_t i = 0; i < turns.size(); ++i) {
      Turn each = turn(turns[i], fmt::format("turn {} of {}", i, name));
      if (each.role != "system") {
        talk.turns.push_back(std::move(each));
        continue;
      }
      if (i > 0) broken(fmt::format("turn {} of {} is a system turn behind others", i, name));
      talk.system = std::move(each.text);
    }
  }

  // The turns before the question are `history`, a list of questions with their answers.
  void ask(const std::string& user, Conversation& talk) const {
    const Json* history = parts_.find("history");
    const std::string name = parts_.name("history");
    for (const Json& each : history ? *history : Json::array()) {
      const bool is_pair = history->is_array() && each.is_array() && each.size() == 2;
      if (!is_pair || !each[0].is_string() || !each[1].is_string())
        throw Error(ErrorKind::data, "{} is no list of questions with their answers, [[\"...\", \"...\"], ...]", name)
            .advise("the source's {} leaves it alone", written_fields({{"history", "none"}}));
      talk.turns.push_back({"user", asked(each[0])});
      talk.turns.push_back({"assistant", each[1]});
    }
    talk.turns.push_back({"user", asked(user)});
  }

  Conversation begun() const { return {parts_.text("system").value_or(mix_.system), {}, tools()}; }

  // A list of functions, or its JSON as a text.
  std::shared_ptr<const nlohmann::ordered_json> tools() const {
    const Json* found = parts_.find("tools");
    if (!found) return nullptr;
    auto list = list_with_order(*found, parts_.name("tools"));
    return list.empty() ? nullptr : std::make_shared<const nlohmann::ordered_json>(std::move(list));
  }

  void add_answered(Conversation talk, const std::string& name) {
    const auto is_answer = [](const Turn& each) { return each.role == "assistant"; };
    if (std::none_of(talk.turns.begin(), talk.turns.end(), is_answer))
      broken(fmt::format("{} has no turn of the assistant", name));
    add(std::move(talk));
  }

  void talk(const std::string& part) {
    Conversation talk = begun();
    append(talk, list(part), parts_.name(part));
    add_answered(std::move(talk), parts_.name(part));
  }

  // ms-swift has the other answer of a pair beside a conversation: its last answer alone, or all turns.
  void talk_or_pair(const std::string& part) {
    talk(part);
    if (parts_.has("rejected_messages")) return talk("rejected_messages");
    if (!parts_.has("rejected_response")) return;
    Conversation rejected = telling_.conversations.back();
    if (rejected.turns.back().role != "assistant")
      broken(fmt::format("{} has no answer at its end, which {} would stand in place of", parts_.name(part),
                         parts_.name("rejected_response")));
    rejected.turns.back() = turn({{"role", "assistant"}, {"content", parts_.need_text("rejected_response")}},
                                 parts_.name("rejected_response"));
    add(std::move(rejected));
  }

  void messages() { talk_or_pair("messages"); }
  void conversations() { talk_or_pair("conversations"); }

  // As a list of { user, assistant }, with the flags of the answer.
  void questions_and_answers() {
    Conversation talk = begun();
    const Json& all = list("texts");
    for (size_t i = 0; i < all.size(); ++i)
      for (const char* role : {"user", "assistant"}) {
        const std::string name = fmt::format("'{}' of number {} of {}", role, i, parts_.name("texts"));
        if (!all[i].is_object() || !all[i].contains(role)) broken(name + " is missing");
        Json message{{"role", role}, {"content", all[i][role]}};
        if (message["role"] == "assistant") copy_turn_flags(all[i], message);
        talk.turns.push_back(turn(message, name));
      }
    add_answered(std::move(talk), parts_.name("texts"));
  }

  void pair_of_turns() { answers_behind_turns({"chosen", "rejected"}); }
  void completion() { answers_behind_turns({"completion"}); }

  // Each answer is a text, a turn or a list of turns. A list that begins with the question is the whole conversation,
  // else what comes before it is `prompt`, `messages` or `conversations`.
  void answers_behind_turns(std::initializer_list<const char*> answers_told) {
    Conversation before = begun();
    for (const char* part : {"prompt", "messages", "conversations"}) {
      const Json* found = before.turns.empty() ? parts_.find(part) : nullptr;
      if (found && found->is_array()) append(before, *found, parts_.name(part));
      if (found && found->is_string()) ask(found->get<std::string>(), before);
    }
    for (const char* part : answers_told) {
      const Json& answer = parts_.need(part);
      const std::string name = parts_.name(part);
      Conversation answers;
      if (answer.is_array())
        append(answers, answer, name);
      else if (answer.is_object())
        answers.turns.push_back(turn(answer, name));
      else
        answers.turns.push_back(turn({{"role", "assistant"}, {"content", text_in(answer, name)}}, name));
      Conversation talk = before;
      if (!answers.system.empty()) talk.system = answers.system;
      if (!answers.turns.empty() && answers.turns.front().role == "user") talk.turns.clear();
      if (talk.turns.empty() && (answers.turns.empty() || answers.turns.front().role != "user")) ask(user(), talk);
      talk.turns.insert(talk.turns.end(), answers.turns.begin(), answers.turns.end());
      add_answered(std::move(talk), name);
    }
  }

  void tokens() {
    const Json &ids = list("token_ids"), &mask = list("loss_mask");
    bool several = ids[0].is_array();
    if (several != mask[0].is_array() || (several && ids.size() != mask.size()))
      broken(
          fmt::format("{} and {} are not lists of the same texts", parts_.name("token_ids"), parts_.name("loss_mask")));
    if (several && ids.size() > max_choices)
      broken(fmt::format("{} has {} texts, and at most {} were expected", parts_.name("token_ids"), ids.size(),
                         max_choices));
    for (size_t i = 0; i < (several ? ids.size() : 1); ++i)
      telling_.tokens.push_back(several ? made(ids[i], mask[i]) : made(ids, mask));
    if (auto answer = parts_.count("answer"); answer && several) {
      if (*answer >= static_cast<int64_t>(ids.size()))
        broken(fmt::format("{} is {}, and there are {} texts", parts_.name("answer"), *answer, ids.size()));
      telling_.correct_choice = answer;
    }
  }

  SampleText made(const Json& ids, const Json& mask) const {
    std::string ids_name = parts_.name("token_ids"), mask_name = parts_.name("loss_mask");
    if (!ids.is_array()) wrong_type("a text of " + ids_name, ids, "a list");
    if (!mask.is_array()) wrong_type("a text of " + mask_name, mask, "a list");
    if (ids.size() != mask.size() || ids.empty())
      broken(fmt::format("{} has {} entries, and {} has {}", ids_name, ids.size(), mask_name, mask.size()));
    SampleText text;
    text.ids.reserve(ids.size());
    text.answer_mask.reserve(ids.size());
    for (const auto& id : ids) {
      if (keeps_marks_ && id.is_number_integer() && id >= INT32_MIN && is_placeholder(id)) {
        text.ids.push_back(id);
        continue;
      }
      if (!id.is_number_unsigned() || id.get<uint64_t>() >> 31)
        broken(fmt::format("entry {} of {} is no token: {}", text.ids.size(), ids_name, brief(id)));
      text.ids.push_back(static_cast<TokenId>(id.get<uint64_t>()));
    }
    for (const auto& entry : mask) {
      bool whole = entry.is_number_unsigned() && entry.get<uint64_t>() <= 1;
      if (!whole && !entry.is_boolean())
        broken(fmt::format("entry {} of {} is neither 0 nor 1: {}", text.answer_mask.size(), mask_name, brief(entry)));
      const bool is_visual = is_placeholder(text.ids[text.answer_mask.size()]);
      text.answer_mask.push_back(!is_visual && (whole ? entry.get<uint64_t>() == 1 : entry.get<bool>()));
    }
    return text;
  }

  static std::string brief(const Json& value) {
    return value.is_primitive() && !value.is_string() ? value.dump() : value.type_name();
  }

  const Parts& parts_;
  const std::optional<std::string>& caption_file_;
  const plan::Mix& mix_;
  bool keeps_marks_;
  bool asks_in_chat_;
  SampleContent telling_;
  size_t bytes_ = 0;
};

} // namespace

SampleContent parse_sample_content(const Parts& parts, const std::optional<std::string>& caption_file,
                                   const plan::Source& source, const plan::Mix& mix,
                                   const plan::VisualRows& visual_rows) {
  return Reader(parts, caption_file, source, mix, visual_rows).read();
}

std::map<std::string, std::string> suggested_fields(const nlohmann::json& sample) {
  const Parts::Fields none;
  const Parts parts(sample, none);
  if (has_inputs(parts) || (Reader::has_form(parts) && !Reader::is_caption(parts))) return none;
  const Parts::Fields fields = fields_of_other_names(parts);
  return Reader::is_caption(parts) && !fields.contains("user") ? none : fields;
}

} // namespace fvlm
