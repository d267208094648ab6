// The chat template of SmolLM2: turns of a conversation become tokens and a mask of the answers.
#pragma once
#include "data/tokenizer.h"
#include "recipe/visual_rows.h"

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace fvlm {

struct Turn {
  std::string role; // "user" or "assistant"
  std::string text;
};

struct ChatTokens {
  std::vector<TokenId> ids;
  std::vector<uint8_t> answer_mask; // 1 for every token of an assistant's turn after "<|im_start|>assistant\n"
};

inline constexpr std::string_view default_system_prompt = "You are a helpful AI assistant.";

// Writes the system prompt (none where it is empty), then the turns. Text of a turn never becomes a special token, so
// users cannot inject markup.
class ChatTemplate {
 public:
  // Throws Error(data) when the tokenizer lacks <|im_start|> or <|im_end|>. `visual_rows`: where they are in place,
  // <image> and <video> in a user's turn become their ids in visual_marks.h.
  explicit ChatTemplate(const Tokenizer& tokenizer, const plan::VisualRows& visual_rows = {});

  ChatTokens encode(std::span<const Turn> turns, std::string_view system = default_system_prompt) const;

  // The same with a generation prompt: it ends with "<|im_start|>assistant\n".
  std::vector<TokenId> prompt(std::span<const Turn> turns, std::string_view system = default_system_prompt) const;

 private:
  void append_turn(const Turn& turn, ChatTokens& out) const;
  void append_text(std::string_view text, bool answer, ChatTokens& out) const;
  void append_user_text(std::string_view text, ChatTokens& out) const;
  void append_token(TokenId id, bool answer, ChatTokens& out) const;

  const Tokenizer& tokenizer_;
  TokenId start_, end_;
  bool has_marks_;
};

} // namespace fvlm
