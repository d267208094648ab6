#include "data/chat.h"

#include "base/error.h"
#include "data/visual_marks.h"

#include <fmt/format.h>

#include <algorithm>

namespace fvlm {
namespace {

TokenId required(const Tokenizer& tokenizer, const char* content) {
  auto id = tokenizer.special_id(content);
  if (!id)
    throw Error(ErrorKind::data, fmt::format("the tokenizer has no special token '{}'", content))
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
          turn.text, [](std::string_view) {}, [&](std::string_view mark) { ids.push_back(id_of(mark)); });
  return ids;
}

} // namespace

void mention_frames(std::vector<Turn>& turns, std::string_view mark) {
  if (!marks_in(turns).empty()) return;
  const auto first = std::find_if(turns.begin(), turns.end(), [](const Turn& turn) { return turn.role == "user"; });
  if (first != turns.end()) first->text = std::string(mark) + "\n" + first->text;
}

ChatTemplate::ChatTemplate(const Tokenizer& tokenizer, const plan::VisualRows& visual_rows,
                           const std::optional<std::string>& name)
    : tokenizer_(tokenizer), has_marks_(visual_rows.in_place) {
  if (name) {
    own_ = std::make_shared<const OwnTemplate>(tokenizer, *name, has_marks_);
    return;
  }
  start_ = required(tokenizer, "<|im_start|>");
  end_ = required(tokenizer, "<|im_end|>");
}

// Answers are encoded apart, so that the mask begins where generation begins.
ChatTokens ChatTemplate::encode_own(std::span<const Turn> turns, std::string_view system, bool prompt) const {
  std::vector<Turn> all;
  if (!system.empty()) all.push_back({"system", std::string(system)});
  all.insert(all.end(), turns.begin(), turns.end());
  const ChatText chat = own_->render(all, prompt);
  ChatTokens out;
  Tokenizer::Encoder encoder(tokenizer_);
  auto append = [&](size_t begin, size_t end, bool answer) {
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
  for (const auto& [begin, end] : chat.answers) {
    append_with_marks(at, begin, false);
    append_with_marks(begin, end, true);
    at = end;
  }
  append_with_marks(at, chat.text.size(), false);
  return out;
}

void ChatTemplate::append_token(TokenId id, bool answer, ChatTokens& out) const {
  out.ids.push_back(id);
  out.answer_mask.push_back(answer);
}

void ChatTemplate::append_text(std::string_view text, bool answer, ChatTokens& out) const {
  auto ids = tokenizer_.encode(text, SpecialTokens::as_text);
  out.ids.insert(out.ids.end(), ids.begin(), ids.end());
  out.answer_mask.insert(out.answer_mask.end(), ids.size(), answer);
}

void ChatTemplate::append_user_text(std::string_view text, ChatTokens& out) const {
  split_at_marks(
      text, [&](std::string_view piece) { append_text(piece, false, out); },
      [&](std::string_view mark) { append_token(id_of(mark), false, out); });
}

void ChatTemplate::append_turn(const Turn& turn, ChatTokens& out) const {
  bool answer = turn.role == "assistant";
  append_token(start_, false, out);
  if (answer) { // encoded apart, so that the mask begins where generation begins
    append_text("assistant\n", false, out);
    append_text(turn.text, true, out);
  } else if (has_marks_ && turn.role == "user") {
    append_user_text(turn.role + "\n" + turn.text, out);
  } else {
    append_text(turn.role + "\n" + turn.text, false, out);
  }
  append_token(end_, answer, out);
  append_text("\n", answer, out);
}

ChatTokens ChatTemplate::encode(std::span<const Turn> turns, std::string_view system) const {
  if (own_) return encode_own(turns, system, false);
  ChatTokens out;
  if (!system.empty()) append_turn({"system", std::string(system)}, out);
  for (const Turn& turn : turns) append_turn(turn, out);
  return out;
}

std::vector<TokenId> ChatTemplate::prompt(std::span<const Turn> turns, std::string_view system) const {
  if (own_) return encode_own(turns, system, true).ids;
  ChatTokens out = encode(turns, system);
  append_token(start_, false, out);
  append_text("assistant\n", false, out);
  return std::move(out.ids);
}

} // namespace fvlm
