// Tokens of a template. White space around tags is removed as transformers configures Jinja: trim_blocks (the newline
// behind a {% %} or {# #} goes) and lstrip_blocks (so do spaces from the beginning of the line to one).
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace fvlm::jinja {

struct Token {
  enum class Kind { data, variable_begin, variable_end, block_begin, block_end, name, string, integer, real, op, end };
  Kind kind;
  int line;
  std::string text; // of data, names, operators; the value of a string
  int64_t integer = 0;
  double real = 0;
};

// Throws Error(data) at "where:line".
std::vector<Token> tokenize(std::string_view source, const std::string& where);

} // namespace fvlm::jinja
