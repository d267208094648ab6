#include "grammar/json_parts.h"

namespace fvlm::grammar {

ByteSet byte_range(int first, int last) {
  ByteSet set;
  for (int byte = first; byte <= last; ++byte) set.set(static_cast<size_t>(byte));
  return set;
}

ByteSet bytes_of(std::string_view all) {
  ByteSet set;
  for (const char c : all) set.set(static_cast<uint8_t>(c));
  return set;
}

Grammar::Rule Parts::rule(std::optional<Rule>& known, Node (Parts::*make)()) {
  if (known) return *known;
  known = g.new_rule();
  const Rule made = *known; // it may call itself
  g.define(made, (this->*make)());
  return made;
}

Grammar::Node Parts::new_line() {
  constexpr int most_spaces = 32;
  return g.text("\n", repeated(0, most_spaces, Grammar::end, [&](Node next) { return g.text(" ", next); }));
}

Grammar::Node Parts::any_character() {
  const Node end = Grammar::end;
  // Four digits, but none of the halves of a pair (D800 to DFFF), which some parsers refuse to read alone.
  const ByteSet hex = bytes_of("0123456789abcdefABCDEF"), d = bytes_of("dD");
  const Node two = g.byte_of(hex, g.byte_of(hex, end)), three = g.byte_of(hex, two);
  const Node code = g.either(g.byte_of(hex & ~d, three), g.byte_of(d, g.byte_of(byte_range('0', '7'), two)));
  const Node escaped = g.either(g.byte_of(bytes_of("\"\\/bfnrt"), end), g.byte_of(bytes_of("u"), code));
  const Node plain = g.byte_of(byte_range(0x20, 0x7f) & ~bytes_of("\"\\"), end);
  return g.either(plain, g.either(beyond_ascii(end), g.byte_of(bytes_of("\\"), escaped)));
}

// Without overlong forms and surrogates.
Grammar::Node Parts::any_beyond_ascii() {
  const auto more = [&](int count) {
    Node node = Grammar::end;
    for (int i = 0; i < count; ++i) node = g.byte_of(byte_range(0x80, 0xbf), node);
    return node;
  };
  Node all = g.byte_of(byte_range(0xc2, 0xdf), more(1));
  const auto add = [&](const ByteSet& first, Node rest) { all = g.either(g.byte_of(first, rest), all); };
  add(byte_range(0xe0, 0xe0), g.byte_of(byte_range(0xa0, 0xbf), more(1)));
  add(byte_range(0xe1, 0xec) | byte_range(0xee, 0xef), more(2));
  add(byte_range(0xed, 0xed), g.byte_of(byte_range(0x80, 0x9f), more(1)));
  add(byte_range(0xf0, 0xf0), g.byte_of(byte_range(0x90, 0xbf), more(2)));
  add(byte_range(0xf1, 0xf3), more(3));
  add(byte_range(0xf4, 0xf4), g.byte_of(byte_range(0x80, 0x8f), more(2)));
  return all;
}

Grammar::Node Parts::any_string() {
  const Node close = g.text("\"", Grammar::end);
  return g.text("\"", repeated(0, {}, close, [&](Node next) { return character(next); }));
}

// The numbers of digits are limited, so that one comes to an end, and a double has it.
Grammar::Node Parts::digits(int64_t fewest, int64_t most, Node next) {
  return repeated(fewest, most, next, [&](Node rest) { return g.byte_of(byte_range('0', '9'), rest); });
}

Grammar::Node Parts::signed_integer(Node next) {
  constexpr int64_t most_digits = 18;
  const Node positive = g.either(g.text("0", next), g.byte_of(byte_range('1', '9'), digits(0, most_digits - 1, next)));
  return g.either(positive, g.text("-", positive));
}

Grammar::Node Parts::any_integer() {
  return signed_integer(Grammar::end);
}
Grammar::Node Parts::any_number() {
  constexpr int64_t most_decimals = 18, most_of_exponent = 2;
  const Node end = Grammar::end, size = digits(1, most_of_exponent, end),
             exponent = g.either(end, g.byte_of(bytes_of("eE"), g.either(size, g.byte_of(bytes_of("+-"), size)))),
             fraction = g.either(exponent, g.text(".", digits(1, most_decimals, exponent)));
  return signed_integer(fraction);
}

Grammar::Node Parts::any_array() {
  return listed("[]", 0, {}, Grammar::end, [&](Node next) { return value(next); });
}

Grammar::Node Parts::any_object() {
  return listed("{}", 0, {}, Grammar::end, [&](Node next) { return string(gap(g.text(":", gap(value(next))))); });
}

Grammar::Node Parts::any_value() {
  const Node end = Grammar::end;
  Node all = g.either(object(end), array(end));
  for (const Node node : {string(end), number(end), g.text("true", end), g.text("false", end), g.text("null", end)})
    all = g.either(node, all);
  return all;
}

} // namespace fvlm::grammar
