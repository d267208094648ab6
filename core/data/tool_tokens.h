// The special tokens of nanochat and GhostVis around what an answer computes and what comes of it.
#pragma once
#include "data/tokenizer.h"

#include <optional>

namespace fvlm {

inline constexpr const char *code_start_token = "<|python_start|>", *code_end_token = "<|python_end|>",
                            *output_start_token = "<|output_start|>", *output_end_token = "<|output_end|>";

struct ToolTokens {
  TokenId code_start, code_end, output_start, output_end;

  // Nothing where the tokenizer lacks one of them.
  static std::optional<ToolTokens> of(const Tokenizer& tokenizer) {
    const auto code_start = tokenizer.special_id(code_start_token), code_end = tokenizer.special_id(code_end_token),
               output_start = tokenizer.special_id(output_start_token),
               output_end = tokenizer.special_id(output_end_token);
    if (!code_start || !code_end || !output_start || !output_end) return {};
    return ToolTokens{*code_start, *code_end, *output_start, *output_end};
  }
};

} // namespace fvlm
