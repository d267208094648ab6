// Chat text: turns of a conversation as the tokens and loss mask of SmolLM2's template.
#pragma once
#include "data/tokenizer.h"

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
  std::vector<uint8_t> answer; // 1 on every token behind "<|im_start|>assistant\n", up to that turn's end
};

inline constexpr std::string_view default_system_line = "You are a helpful AI assistant.";

// The system line (empty: none), then the turns. What turns say is text: it never yields special tokens.
class ChatTemplate {
 public:
  // Throws Error(data) when the tokenizer lacks <|im_start|> or <|im_end|>.
  explicit ChatTemplate(const Tokenizer& tokenizer);

  ChatTokens encode(std::span<const Turn> turns, std::string_view system = default_system_line) const;

  // The same, ready for the model to answer: it ends with "<|im_start|>assistant\n".
  std::vector<TokenId> prompt(std::span<const Turn> turns, std::string_view system = default_system_line) const;

 private:
  void append_turn(const Turn& turn, ChatTokens& out) const;
  void append_text(const std::string& text, bool answer, ChatTokens& out) const;
  void append_token(TokenId id, bool answer, ChatTokens& out) const;

  const Tokenizer& tokenizer_;
  TokenId start_, end_;
};

} // namespace fvlm
