#include "data/chat.h"

#include "base/error.h"
#include "base/log.h"
#include "data/visual_marks.h"

#include <algorithm>
#include <utility>

namespace fvlm {
namespace {

TokenId required(const Tokenizer& tokenizer, const char* content) {
  auto id = tokenizer.special_id(content);
  if (!id)
    throw Error(ErrorKind::data, "the tokenizer has no special token '{}'", content)
        .advise("set chat_template = \"default\" to use the model's own chat template, or take a tokenizer with "
                "ChatML's special tokens, such as that of SmolLM2-135M-Instruct");
  return *id;
}

TokenId id_of(std::string_view mark) {
  return mark == image_mark ? image_mark_id : video_mark_id;
}

std::vector<TokenId> marks_in(std::span<const Turn> turns) {
  std::vector<TokenId> ids;
  for (const Turn& turn : turns)
    if (turn.role == "user")
      split_at_marks(
          text_with_video(turn), [](std::string_view) {}, [&](std::string_view mark) { ids.push_back(id_of(mark)); });
  return ids;
}

bool writes_images(const Tokenizer& tokenizer, const char* name) {
  try {
    return OwnTemplate(tokenizer, name).image_token().has_value();
  } catch (const Error&) { // it refuses them
    return false;
  }
}

} // namespace

void mention_frames(std::vector<Turn>& turns, std::string_view marks, std::string_view behind) {
  if (!marks_in(turns).empty()) return;
  const auto first = std::find_if(turns.begin(), turns.end(), [](const Turn& turn) { return turn.role == "user"; });
  if (first != turns.end()) first->text = std::string(marks).append(behind) + first->text;
}

bool mentions_video(std::span<const Turn> turns) {
  return std::ranges::count(marks_in(turns), video_mark_id) > 0;
}

void write_video(std::vector<Turn>& turns, const std::string& text, bool may_have_images) {
  const std::vector<TokenId> marks = marks_in(turns);
  const auto videos = static_cast<size_t>(std::ranges::count(marks, video_mark_id));
  require_one_video(may_have_images ? 0 : marks.size() - videos, videos);
  for (Turn& turn : turns)
    if (turn.role == "user" && turn.text.find(video_mark) != std::string::npos) turn.video_text = text;
}

ChatTemplate::ChatTemplate(const Tokenizer& tokenizer, const plan::VisualRows& visual_rows,
                           const std::optional<std::string>& name)
    : tokenizer_(tokenizer), tool_tokens_(ToolTokens::of(tokenizer)), has_marks_(visual_rows.in_place) {
  if (name) {
    own_ = std::make_shared<const OwnTemplate>(tokenizer, *name, has_marks_);
    if (*name == "default" && OwnTemplate::is_in(tokenizer.folder(), tool_template))
      own_tools_ = std::make_shared<const OwnTemplate>(tokenizer, tool_template, has_marks_);
    return;
  }
  start_ = required(tokenizer, "<|im_start|>");
  end_ = required(tokenizer, "<|im_end|>");
}

// Answers are encoded apart, so that the mask begins where generation begins.
ChatTokens ChatTemplate::encode_own(std::span<const Turn> turns, std::string_view system, bool prompt,
                                    const TemplateValues& values) const {
  std::vector<Turn> all;
  if (!system.empty()) all.push_back({"system", std::string(system)});
  all.insert(all.end(), turns.begin(), turns.end());
  const ChatText chat = (values.tools && own_tools_ ? own_tools_ : own_)->render(all, prompt, values);
  ChatTokens out;
  Tokenizer::Encoder encoder(tokenizer_);
  // SentencePiece gives a text a space in front. One that continues another in the middle of a line has its own.
  auto has_own_space = [&](size_t begin, size_t end) {
    return tokenizer_.drops_first_space() && end - begin > 1 && chat.text[begin] == ' ' && !out.ids.empty() &&
           out.ids.back() >= 0 && !tokenizer_.is_special(out.ids.back()) &&
           !tokenizer_.special_at(chat.text, begin + 1);
  };
  auto append = [&](size_t begin, size_t end, bool answer) {
    if (has_own_space(begin, end)) ++begin;
    encoder.append_text_with_tokens(std::string_view(chat.text).substr(begin, end - begin), chat.literal, begin,
                                    out.ids);
    out.answer_mask.resize(out.ids.size(), answer);
  };
  const std::vector<TokenId> kinds = marks_in(turns);
  auto mark = chat.marks.begin();
  auto append_with_marks = [&](size_t begin, size_t end, bool answer) {
    for (; mark != chat.marks.end() && mark->second <= end; ++mark) {
      append(begin, mark->first, answer);
      append_token(kinds[static_cast<size_t>(mark - chat.marks.begin())], false, out);
      begin = mark->second;
    }
    append(begin, end, answer);
  };
  size_t at = 0;
  for (const auto& [begin, end, is_learnt] : chat.answers) {
    append_with_marks(at, begin, false);
    append_with_marks(begin, end, is_learnt);
    at = end;
  }
  append_with_marks(at, chat.text.size(), false);
  unlabel_outputs(turns, out);
  return out;
}

// The tokens around outputs are those that their turns' parts made: what a turn spells is text.
void ChatTemplate::unlabel_outputs(std::span<const Turn> turns, ChatTokens& out) const {
  int64_t expected = 0, found = 0;
  for (const Turn& turn : turns)
    expected += std::count_if(turn.parts.begin(), turn.parts.end(),
                              [](const TurnPart& part) { return part.kind == TurnPart::Kind::output; });
  if (expected == 0) return;
  bool inside = false;
  for (size_t i = 0; i < out.ids.size(); ++i) {
    if (out.ids[i] == tool_tokens_->output_start) inside = true, ++found;
    if (inside) out.answer_mask[i] = 0;
    if (out.ids[i] == tool_tokens_->output_end) inside = false;
  }
  if (found != expected)
    throw Error(ErrorKind::data, "the chat template writes {} of {} outputs of tools", found, expected)
        .advise("make the template write all of an answer's content");
}

void ChatTemplate::require_form(std::span<const Turn> turns) const {
  for (const Turn& turn : turns) {
    if (!turn.parts.empty() && !tool_tokens_)
      throw Error(
          ErrorKind::data,
          "an answer has parts of type python or python_output, and the tokenizer lacks one of {}, {}, {} and {}",
          code_start_token, code_end_token, output_start_token, output_end_token)
          .advise("use a tokenizer with these special tokens, such as nanochat's, or write the answer as one text");
    if (!own_ && (turn.role == "tool" || turn.fields))
      throw Error(ErrorKind::data, "it has calls of tools, and ChatML has no form for them")
          .advise("set chat_template = \"default\" in the mix to use the template of the decoder's folder");
  }
}

void ChatTemplate::append_token(TokenId id, bool answer, ChatTokens& out) const {
  out.ids.push_back(id);
  out.answer_mask.push_back(answer);
}

void ChatTemplate::append_text(std::string_view text, bool answer, ChatTokens& out, Spelled tokens) const {
  for (size_t at = 0; at < text.size() && !tokens.empty();) {
    const auto found = std::ranges::find_if(tokens, [&](auto token) { return text.substr(at).starts_with(token); });
    const auto id = found == tokens.end() ? std::nullopt : tokenizer_.special_id(*found);
    if (!id) {
      ++at;
      continue;
    }
    append_text(text.substr(0, at), answer, out);
    append_token(*id, answer, out);
    text.remove_prefix(std::exchange(at, 0) + found->size());
  }
  auto ids = tokenizer_.encode(text, SpecialTokens::as_text, TextPlace::inside); // behind <|im_start|>
  out.ids.insert(out.ids.end(), ids.begin(), ids.end());
  out.answer_mask.insert(out.answer_mask.end(), ids.size(), answer);
}

void ChatTemplate::append_user_text(std::string_view text, ChatTokens& out, Spelled tokens) const {
  split_at_marks(
      text, [&](std::string_view piece) { append_text(words_as_spelled(piece), false, out, tokens); },
      [&](std::string_view mark) { append_token(id_of(mark), false, out); });
}

void ChatTemplate::append_parts(const Turn& turn, bool is_learnt, ChatTokens& out) const {
  for (const TurnPart& part : turn.parts) {
    const bool is_text = part.kind == TurnPart::Kind::text, is_output = part.kind == TurnPart::Kind::output,
               is_label = is_learnt && !is_output;
    if (!is_text) append_token(is_output ? tool_tokens_->output_start : tool_tokens_->code_start, is_label, out);
    append_text(part.text, is_label, out, is_text ? turn.tokens : Spelled());
    if (!is_text) append_token(is_output ? tool_tokens_->output_end : tool_tokens_->code_end, is_label, out);
  }
}

void ChatTemplate::append_turn(const Turn& turn, ChatTokens& out) const {
  const bool is_answer = turn.role == "assistant", is_learnt = is_answer && turn.is_learnt;
  append_token(start_, false, out);
  if (is_answer) { // encoded apart, so that the mask begins where generation begins
    append_text("assistant\n", false, out);
    if (turn.parts.empty())
      append_text(turn.text, is_learnt, out, turn.tokens);
    else
      append_parts(turn, is_learnt, out);
  } else if (has_marks_ && turn.role == "user") {
    append_user_text(turn.role + "\n" + text_with_video(turn), out, turn.tokens);
  } else {
    append_text(turn.role + "\n" + turn.text, false, out, turn.tokens);
  }
  append_token(end_, is_learnt, out);
  append_text("\n", is_learnt, out);
}

ChatTokens ChatTemplate::encode(std::span<const Turn> turns, std::string_view system,
                                const nlohmann::ordered_json* tools) const {
  require_form(turns);
  if (own_) return encode_own(turns, system, false, {.tools = tools});
  ChatTokens out;
  if (!system.empty()) append_turn({"system", std::string(system)}, out);
  for (const Turn& turn : turns) append_turn(turn, out);
  return out;
}

std::vector<TokenId> ChatTemplate::prompt(std::span<const Turn> turns, std::string_view system,
                                          const TemplateValues& values) const {
  if (own_) return encode_own(turns, system, true, values).ids;
  if (values.tools)
    throw Error(ErrorKind::data, "ChatML has no place for tools")
        .advise("take a model whose folder brings a chat template that calls tools");
  ChatTokens out = encode(turns, system);
  append_token(start_, false, out);
  append_text("assistant\n", false, out);
  return std::move(out.ids);
}

bool ChatTemplate::takes_parts() const {
  return own_ && own_->takes_parts();
}

const ToolCallForm* ChatTemplate::tool_call_form() const {
  return own_tools_ ? own_tools_->tool_call_form() : own_ ? own_->tool_call_form() : nullptr;
}

const ThoughtTags* ChatTemplate::thought_tags() const {
  return own_ ? own_->thought_tags() : fvlm::thought_tags(tokenizer_, "");
}

std::optional<ThinkingSwitch> ChatTemplate::thinking_switch() const {
  return own_ ? own_->thinking_switch() : std::nullopt;
}

Thinking ChatTemplate::thinking_behind(std::span<const TokenId> prompt) const {
  return fvlm::thinking_behind(tokenizer_, prompt, thought_tags());
}

std::optional<std::string> own_chat_template(const Tokenizer& tokenizer, const std::string& system) {
  constexpr const char* name = "default";
  const std::vector<Turn> turns = {{"user", "How many?"}, {"assistant", "Two."}};
  std::vector<TokenId> own, without_system;
  try {
    if (!OwnTemplate::is_in(tokenizer.folder(), name)) return {};
    if (writes_images(tokenizer, name)) return name;
    const ChatTemplate chat(tokenizer, {}, name);
    without_system = chat.encode(turns, "").ids;
    try {
      own = chat.encode(turns, system).ids;
    } catch (const Error&) { // it may refuse a system turn, as ChatML does not
    }
  } catch (const Error& error) {
    log_warning("chats are written in ChatML: {}", error.text());
    return {};
  }
  try {
    const ChatTemplate chatml(tokenizer);
    // Of the usual one nobody asked for a turn.
    const bool adds_system = system == default_system_prompt && chatml.encode(turns, "").ids == without_system;
    if (chatml.encode(turns, system).ids == own && !adds_system) return {};
  } catch (const Error&) { // the tokenizer lacks ChatML's tokens
  }
  return name;
}

std::optional<ChatTemplate> chatml_with_tools(const Tokenizer& tokenizer, const plan::VisualRows& visual_rows) {
  constexpr const char* name = "default";
  const std::vector<Turn> turns = {{"user", "How many?"}, {"assistant", "Two."}};
  try {
    if (!OwnTemplate::is_in(tokenizer.folder(), name)) return {};
    ChatTemplate own(tokenizer, visual_rows, name);
    if (own.tool_call_form() && own.encode(turns).ids == ChatTemplate(tokenizer).encode(turns).ids) return own;
  } catch (const Error&) { // it cannot be run, or the tokenizer lacks ChatML's tokens
  }
  return {};
}

} // namespace fvlm
