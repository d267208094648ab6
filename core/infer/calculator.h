// The calculator of nanochat and GhostVis: what a decoder writes between two special tokens is an expression, whose
// value follows between two others, whatever the model says.
#pragma once
#include "data/tool_tokens.h"

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace fvlm::infer {

// The value of numbers, + - * / and parentheses, as Python writes it: 21 / 3 is "7.0". Commas inside numbers are
// dropped. Nothing for any other text, a division by zero, and whole numbers beyond 64 bits.
std::optional<std::string> calculate(std::string_view expression);

class Calculator {
 public:
  // Null where the tokenizer lacks <|python_start|>, <|python_end|>, <|output_start|> or <|output_end|>.
  static std::unique_ptr<const Calculator> of(Tokenizer tokenizer);
  // The same of a tokenizer.json, null where there is none.
  static std::unique_ptr<const Calculator> of_file(const std::filesystem::path& tokenizer);

  // The tokens that follow an answer whose last token ends an expression. None otherwise, or without a value.
  std::vector<int64_t> following(std::span<const int64_t> answer) const;

 private:
  Calculator(Tokenizer tokenizer, const ToolTokens& tokens) : tokenizer_(std::move(tokenizer)), tokens_(tokens) {}

  Tokenizer tokenizer_;
  ToolTokens tokens_;
};

} // namespace fvlm::infer
