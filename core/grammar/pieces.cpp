#include "grammar/pieces.h"

#include <algorithm>
#include <charconv>
#include <utility>

namespace fvlm::grammar {

using Node = Grammar::Node;

Piece either_of(Grammar& grammar, std::vector<Piece> options) {
  if (options.size() == 1) return std::move(options.front());
  return [&grammar, options = std::move(options)](Node next) {
    Node all = options.front()(next);
    for (size_t i = 1; i < options.size(); ++i) all = grammar.either(all, options[i](next));
    return all;
  };
}

Piece in_order(std::vector<Piece> pieces) {
  return [pieces = std::move(pieces)](Node next) {
    for (auto piece = pieces.rbegin(); piece != pieces.rend(); ++piece) next = (*piece)(next);
    return next;
  };
}

int64_t characters_in(std::string_view text) {
  return std::ranges::count_if(text, [](char byte) { return (static_cast<uint8_t>(byte) & 0xc0) != 0x80; });
}

std::optional<int64_t> SourceText::take_number(int64_t most) {
  int64_t value = 0;
  const char* const begin = text_.data() + at_;
  const auto [end, error] = std::from_chars(begin, text_.data() + text_.size(), value);
  if (error != std::errc() || value < 0 || value > most) return {};
  at_ += static_cast<size_t>(end - begin);
  return value;
}

} // namespace fvlm::grammar
