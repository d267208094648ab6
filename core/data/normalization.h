// What tokenizers do to text before they split it: Unicode normalization form C (Qwen), and SentencePiece's marks in
// place of spaces (Llama 2).
#pragma once
#include <string>
#include <string_view>
#include <vector>

namespace fvlm {

// False only for text that is in form C already: it has no character that could change.
bool may_need_nfc(std::string_view text);

// Canonical decomposition, reordering of marks and composition, as Hugging Face tokenizers does (Unicode 9). The text
// must be valid UTF-8.
std::string to_nfc(std::string_view text);

std::string replace_all(std::string_view text, std::string_view from, std::string_view to);

struct Normalizer {
  enum class Kind { nfc, prepend, replace } kind;
  std::string from, to; // prepend: `to`; replace: every `from` by `to`
};

std::string normalize(const std::vector<Normalizer>& steps, std::string_view text);

} // namespace fvlm
