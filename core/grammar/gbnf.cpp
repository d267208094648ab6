#include "grammar/gbnf.h"

#include "base/error.h"
#include "base/utf8.h"
#include "grammar/characters.h"
#include "grammar/json_parts.h"
#include "grammar/pieces.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace fvlm::grammar {
namespace {

using Node = Grammar::Node;
using Rule = Grammar::Rule;

constexpr size_t most_places = 10'000, most_bytes = size_t{1} << 20; // of the grammar, and of its text
constexpr int64_t most_rules = 1000, deepest = 100, most_times = 1000, most_repetitions = 100'000;

bool is_name(char letter) {
  return (letter >= 'a' && letter <= 'z') || (letter >= 'A' && letter <= 'Z') || (letter >= '0' && letter <= '9') ||
         letter == '-' || letter == '_';
}

class Gbnf : SourceText {
 public:
  Gbnf(std::string_view text, Grammar& grammar)
      : SourceText(text), g_(grammar), parts_(grammar), characters_(grammar) {}

  void read() {
    if (text_.size() > most_bytes)
      throw Error(ErrorKind::usage, "the grammar has {} bytes, more than {}", text_.size(), most_bytes);
    if (!is_utf8(text_)) throw Error(ErrorKind::usage, "the grammar is no UTF-8");
    (void)rule_named("root", 0);
    skip();
    while (!is_over()) read_rule();
    if (!names_.at("root").is_defined)
      throw Error(ErrorKind::usage, "the grammar has no rule 'root', which is the whole text")
          .advise("name the first rule so: root ::= ...");
    for (const auto& [name, known] : names_)
      if (!known.is_defined) throw wrong(known.place, fmt::format("there is no rule '{}'", name));
    if (const auto rule = g_.left_recursive_rule())
      refuse_rule(*rule, "calls itself before it has read anything",
                  "write repetitions as such: sum ::= number (\"+\" number)* in place of sum ::= sum \"+\" number");
    if (const auto rule = g_.endless_rule())
      refuse_rule(*rule, "never ends: each of its alternatives leads to itself again", "give it one that does not");
  }

 private:
  struct KnownRule {
    Rule rule;
    size_t place; // where it is defined, or was mentioned first
    bool is_defined = false;
  };

  Error wrong(size_t place, const std::string& what) const {
    const std::string_view before = text_.substr(0, place);
    const size_t line = before.rfind('\n') == std::string_view::npos ? 0 : before.rfind('\n') + 1;
    return Error(ErrorKind::usage, "the grammar, line {}, column {}: {}", 1 + std::ranges::count(before, '\n'),
                 1 + characters_in(before.substr(line)), what);
  }
  Error wrong(const std::string& what) const { return wrong(at_, what); }

  // Of those that characters_ made none calls anything.
  void refuse_rule(Rule rule, const char* what, const char* advice) const {
    for (const auto& [name, known] : names_)
      if (known.rule == rule)
        throw wrong(known.place, fmt::format("the rule '{}' {}", name, what)).advise("{}", advice);
    throw Error(ErrorKind::internal, "rule {} of a grammar {}", rule, what);
  }

  // White space and comments.
  void skip() {
    while (!is_over()) {
      if (text_[at_] == '#')
        at_ = std::min(text_.find('\n', at_), text_.size());
      else if (std::string_view(" \t\r\n").find(text_[at_]) == std::string_view::npos)
        return;
      else
        ++at_;
    }
  }

  std::string_view take_name() {
    const size_t begin = at_;
    while (!is_over() && is_name(text_[at_])) ++at_;
    return text_.substr(begin, at_ - begin);
  }
  // Whether a rule begins here, which ends the one before.
  bool begins_rule() {
    const size_t begin = at_;
    const bool has_name = !take_name().empty();
    skip();
    const bool found = has_name && begins("::=");
    at_ = begin;
    return found;
  }

  KnownRule& rule_named(std::string_view name, size_t place) {
    const auto [found, is_new] = names_.try_emplace(std::string(name), KnownRule{0, place});
    if (!is_new) return found->second;
    if (std::ssize(names_) > most_rules)
      throw wrong(place, fmt::format("the grammar has more than {} rules", most_rules));
    found->second.rule = g_.new_rule();
    return found->second;
  }

  void read_rule() {
    const size_t begin = at_;
    const std::string_view name = take_name();
    if (name.empty()) throw wrong("expected the name of a rule: letters, digits, '-' and '_'");
    skip();
    if (!take("::=")) {
      Error error = wrong("expected ::= behind the name of a rule");
      if (begins(":")) error.advise("GBNF is read, root ::= ..., and Lark's form is not");
      throw error;
    }
    skip();
    KnownRule& rule = rule_named(name, begin);
    if (rule.is_defined) throw wrong(begin, fmt::format("there is a rule '{}' already", name));
    rule.is_defined = true;
    rule.place = begin;
    const Rule number = rule.rule;
    const Piece all = alternatives();
    if (!is_over() && !begins_rule())
      throw wrong(begins(")") ? "there is no group that it closes" : fmt::format("'{}' is not expected here", here()));
    g_.define(number, all(Grammar::end));
    require_size(begin);
  }

  // The character here, for messages.
  std::string here() const { return std::string(text_.substr(at_, utf8_size(text_.substr(at_)))); }

  void require_size(size_t place) const {
    if (g_.size() > most_places || repetitions_ > most_repetitions)
      throw wrong(place, fmt::format("the grammar is too large: with its counts written out it has more than {} places "
                                     "where a text may be",
                                     most_places))
          .advise("lower its counts");
  }

  Piece alternatives() {
    if (++depth_ > deepest) throw wrong(fmt::format("more than {} groups are in each other", deepest));
    std::vector<Piece> options;
    do {
      skip();
      options.push_back(sequence());
    } while (take("|"));
    --depth_;
    return either_of(g_, std::move(options));
  }

  // May be empty.
  Piece sequence() {
    std::vector<Piece> pieces;
    while (!is_over() && !begins("|") && !begins(")") && !begins_rule()) {
      auto piece = single();
      if (!piece) break;
      skip();
      if (const auto more = counted(*piece)) {
        piece = more;
        skip();
        if (begins_count()) throw wrong("a count of a count: put a group around the first");
      }
      pieces.push_back(*piece);
    }
    return in_order(std::move(pieces));
  }

  // Nothing where none begins.
  std::optional<Piece> single() {
    const size_t begin = at_;
    if (take("(")) {
      if (begins("=") || begins("!")) throw wrong(begin, "looking ahead is not supported");
      const Piece inside = alternatives();
      if (!take(")"))
        throw is_over() ? wrong(begin, "the group does not end") : wrong("expected a ) that ends the group");
      return inside;
    }
    if (take("\"")) return literal(begin);
    if (take("[")) return one_of(char_class(begin), begin);
    if (is_name(text_[at_])) {
      const Rule rule = rule_named(take_name(), begin).rule;
      return [this, rule](Node next) { return g_.call(rule, next); };
    }
    if (take(".")) return one_of(all_but({}), begin);
    if (begins_count()) throw wrong("expected something to count before it");
    if (begins("'")) throw wrong("a text stands between \" and \"");
    if (begins("<") || begins("!")) throw wrong("tokens are not supported: write the text that they stand for");
    return {};
  }

  bool begins_count() const { return begins("*") || begins("+") || begins("?") || begins("{"); }

  // With a count that stands here; nothing where none does.
  std::optional<Piece> counted(const Piece& piece) {
    const size_t begin = at_;
    int64_t fewest = 0;
    std::optional<int64_t> most;
    if (take("+"))
      fewest = 1;
    else if (take("?"))
      most = 1;
    else if (take("{")) {
      fewest = begins(",") ? 0 : number();
      most = fewest;
      skip();
      if (take(",")) {
        skip();
        most = begins("}") ? std::nullopt : std::optional(number());
      }
      skip();
      if (!take("}")) throw wrong("expected a count, {2}, {2,}, {,4} or {2,4}");
      if (most && *most < fewest) throw wrong(begin, "expected a count from the least to the most");
    } else if (!take("*"))
      return {};
    return [this, piece, fewest, most, begin](Node next) {
      return parts_.repeated(fewest, most, next, [&](Node rest) { // also where the piece adds no node
        ++repetitions_;
        require_size(begin);
        return piece(rest);
      });
    };
  }

  int64_t number() {
    skip();
    const auto value = take_number(most_times);
    if (!value) throw wrong(fmt::format("expected a count from 0 to {}", most_times));
    return *value;
  }

  Piece literal(size_t begin) {
    std::string text;
    while (!take("\"")) append_utf8(text, character(begin, "the text does not end"));
    return [this, text](Node next) { return g_.text(text, next); };
  }

  // Behind its bracket.
  CharacterRanges char_class(size_t begin) {
    constexpr const char* endless = "the class does not end";
    const bool is_negated = take("^");
    CharacterRanges ranges;
    while (!take("]")) {
      const size_t place = at_;
      const uint32_t first = character(begin, endless);
      uint32_t last = first;
      if (begins("-") && !begins("-]")) {
        ++at_;
        last = character(begin, endless);
      }
      if (last < first) throw wrong(place, "expected a range from a character to one behind it");
      ranges.emplace_back(first, last);
    }
    ranges = normal(std::move(ranges));
    return is_negated ? all_but(ranges) : ranges;
  }

  Piece one_of(const CharacterRanges& ranges, size_t begin) {
    if (ranges.empty()) throw wrong(begin, "no character is one of these");
    return [this, ranges](Node next) { return characters_.one_of(ranges, next); };
  }

  // One of a text or class, which may be an escape.
  uint32_t character(size_t begin, const char* endless) {
    if (is_over() || begins("\n")) throw wrong(begin, endless);
    if (take("\\")) return escaped(begin, endless);
    const std::string_view whole = text_.substr(at_, utf8_size(text_.substr(at_)));
    at_ += whole.size();
    return code_point(whole);
  }

  uint32_t escaped(size_t begin, const char* endless) {
    if (is_over()) throw wrong(begin, endless);
    const size_t place = at_ - 1;
    const char kind = text_[at_++];
    constexpr std::string_view letters = "nrt", means = "\n\r\t", themselves = "\\\"'[]^-/.";
    if (const size_t found = letters.find(kind); found != std::string_view::npos)
      return static_cast<uint8_t>(means[found]);
    if (themselves.find(kind) != std::string_view::npos) return static_cast<uint8_t>(kind);
    const size_t digits = kind == 'x' ? 2 : kind == 'u' ? 4 : kind == 'U' ? 8 : 0;
    if (digits == 0) throw wrong(place, "there is no such escape");
    uint32_t value = 0;
    const std::string_view hex = text_.substr(at_, digits);
    const auto [end, error] = std::from_chars(hex.data(), hex.data() + hex.size(), value, 16);
    if (error != std::errc() || hex.size() != digits || end != hex.data() + digits)
      throw wrong(place, fmt::format("expected {} hexadecimal digits behind \\{}", digits, kind));
    if (normal({{value, value}}).empty() || value > 0x10ffff) throw wrong(place, "there is no such character");
    at_ += digits;
    return value;
  }

  Grammar& g_;
  Parts parts_;
  CharacterNodes characters_;
  std::map<std::string, KnownRule> names_;
  int64_t depth_ = 0, repetitions_ = 0;
};

} // namespace

Grammar of_gbnf(std::string_view text) {
  Grammar grammar;
  Gbnf(text, grammar).read();
  return grammar;
}

} // namespace fvlm::grammar
