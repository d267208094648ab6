// What any JSON consists of: its values, and the lists and texts that grammars of schemas are made of.
#pragma once
#include "grammar/grammar.h"

#include <algorithm>
#include <optional>
#include <string_view>

namespace fvlm::grammar {

ByteSet byte_range(int first, int last);
ByteSet bytes_of(std::string_view all);

class Parts {
  using Node = Grammar::Node;

 public:
  explicit Parts(Grammar& grammar) : g(grammar) {}
  Grammar& g;

  Node gap(Node next) {
    const Node line = g.call(rule(line_, &Parts::new_line), next);
    return g.either(next, g.either(g.text(" ", next), line));
  }
  Node string(Node next) { return g.call(rule(string_, &Parts::any_string), next); }
  Node value(Node next) { return g.call(rule(value_, &Parts::any_value), next); }
  Node object(Node next) { return g.call(rule(object_, &Parts::any_object), next); }
  Node array(Node next) { return g.call(rule(array_, &Parts::any_array), next); }
  Node number(Node next) { return g.call(rule(number_, &Parts::any_number), next); }
  Node integer(Node next) { return g.call(rule(integer_, &Parts::any_integer), next); }
  // A character of a string, which may be an escape.
  Node character(Node next) { return g.call(rule(character_, &Parts::any_character), next); }
  // One that is not of ASCII, as UTF-8.
  Node beyond_ascii(Node next) { return g.call(rule(beyond_ascii_, &Parts::any_beyond_ascii), next); }

  // Between `fewest` and `most` times: `one(next)` is a node from which one leads to `next`.
  template <class One>
  Node repeated(int64_t fewest, std::optional<int64_t> most, Node next, const One& one) {
    Node rest = next;
    if (most) {
      for (int64_t i = fewest; i < *most; ++i) rest = g.either(next, one(rest));
    } else {
      const Node loop = g.forward();
      rest = g.either(next, one(loop));
      g.lead(loop, rest);
    }
    for (int64_t i = 0; i < fewest; ++i) rest = one(rest);
    return rest;
  }

  // Braces or brackets around members: `member(next)` is one of them.
  template <class Member>
  Node listed(const char* brackets, int64_t fewest, std::optional<int64_t> most, Node next, const Member& member) {
    const auto open = [&](Node inside) { return g.byte_of(bytes_of({brackets, 1}), inside); };
    const Node close = g.byte_of(bytes_of({brackets + 1, 1}), next), empty = gap(close);
    if (most == 0) return open(empty);
    const auto one_more = [&](Node rest) { return gap(g.byte_of(bytes_of(","), gap(member(rest)))); };
    const int64_t after_first = std::max<int64_t>(fewest - 1, 0);
    const Node rest = repeated(after_first, most ? std::optional(*most - 1) : std::nullopt, gap(close), one_more);
    const Node filled = gap(member(rest));
    return open(fewest == 0 ? g.either(empty, filled) : filled);
  }

 private:
  using Rule = Grammar::Rule;
  Rule rule(std::optional<Rule>& known, Node (Parts::*make)());
  Node new_line();
  Node any_character();
  Node any_beyond_ascii();
  Node any_string();
  Node digits(int64_t fewest, int64_t most, Node next);
  Node signed_integer(Node next);
  Node any_integer();
  Node any_number();
  Node any_array();
  Node any_object();
  Node any_value();

  std::optional<Rule> string_, value_, object_, array_, number_, integer_, character_, beyond_ascii_, line_;
};

} // namespace fvlm::grammar
