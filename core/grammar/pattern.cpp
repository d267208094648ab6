#include "grammar/pattern.h"

#include "base/error.h"
#include "grammar/pieces.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <string>
#include <vector>

namespace fvlm::grammar {
namespace {

using Node = Grammar::Node;

// Which characters a place may have.
struct Characters {
  ByteSet ascii;
  bool beyond_ascii = false;           // all others
  std::vector<std::string> named = {}; // some others, as UTF-8
};

enum class Spelling { of_json_strings, plain };

// Each piece adds a node, so that counts of counts are limited.
class Pattern : SourceText {
 public:
  Pattern(std::string_view text, Parts& parts, Spelling spelling)
      : SourceText(text), parts_(parts), g_(parts.g), spelling_(spelling) {}

  Node matching(Node next) {
    const Piece all = alternatives(true);
    if (!is_over()) throw wrong("there is no group that it closes");
    return all(next);
  }

 private:
  Error wrong(const std::string& what) const {
    return Error(ErrorKind::usage, "pattern, character {}: {}", characters_in(text_.substr(0, at_)) + 1, what);
  }
  Error unsupported(const std::string& what) const {
    return wrong(what + " not supported").advise("leave it out, and check the answer for it");
  }

  char take_one() {
    if (is_over()) throw wrong("it is not complete");
    return text_[at_++];
  }

  // `is_whole`: outside of all groups, where anchors may be.
  Piece alternatives(bool is_whole) {
    constexpr int deepest = 100;
    if (++depth_ > deepest) throw wrong(fmt::format("more than {} groups are in each other", deepest));
    std::vector<Piece> options;
    do options.push_back(sequence(is_whole));
    while (take("|"));
    --depth_;
    return either_of(g_, std::move(options));
  }

  Piece sequence(bool is_whole) {
    std::vector<Piece> pieces;
    if (is_whole) (void)take("^");
    while (!is_over() && !begins("|") && !begins(")")) {
      if (begins("$") && is_whole) {
        ++at_;
        if (!is_over() && !begins("|")) throw unsupported("an anchor inside of a pattern is");
        break;
      }
      pieces.push_back(counted(single()));
    }
    if (pieces.empty()) throw wrong("expected something to match; write ? behind what may lack");
    return in_order(std::move(pieces));
  }

  Piece single() {
    if (take("(")) {
      if (!take("?:") && begins("?")) throw unsupported("of groups, those that look around or have names are");
      Piece inside = alternatives(false);
      if (!take(")")) throw wrong("expected a ) that ends the group");
      return inside;
    }
    if (take("[")) return one_of(char_class());
    if (take(".")) return one_of({.ascii = ~bytes_of("\n\r"), .beyond_ascii = true});
    if (begins("^") || begins("$")) throw unsupported("an anchor inside of a pattern is");
    for (const char* const count : {"*", "+", "?", "{"})
      if (begins(count)) throw wrong("expected something to count; write \\ before a character that means itself");
    return one_of(take("\\") ? escaped() : character());
  }

  // A piece with the count behind it.
  Piece counted(const Piece& piece) {
    int64_t fewest = 1;
    std::optional<int64_t> most = 1;
    if (take("*"))
      fewest = 0, most.reset();
    else if (take("+"))
      most.reset();
    else if (take("?"))
      fewest = 0;
    else if (take("{")) {
      fewest = number();
      most = fewest;
      if (take(",")) most = begins("}") ? std::nullopt : std::optional(number());
      if (!take("}")) throw wrong("expected a count, {2}, {2,} or {2,4}");
      if (most && (*most < fewest || *most == 0)) throw wrong("expected a count from the least to the most, above 0");
    } else
      return piece;
    (void)take("?"); // fewer rather than more: the same texts
    for (const char* const count : {"*", "+", "?", "{"})
      if (begins(count)) throw unsupported("a count of a count is");
    return [this, piece, fewest, most](Node next) { return parts_.repeated(fewest, most, next, piece); };
  }

  int64_t number() {
    constexpr int64_t most = 1000;
    const auto value = take_number(most);
    if (!value) throw wrong(fmt::format("expected a count from 0 to {}", most));
    return *value;
  }

  Characters character() {
    const char first = take_one();
    const auto byte = static_cast<uint8_t>(first);
    if (byte < 0x80) return {.ascii = bytes_of({&first, 1})};
    std::string all(1, first); // the pattern is UTF-8
    while (!is_over() && (static_cast<uint8_t>(text_[at_]) & 0xc0) == 0x80) all += text_[at_++];
    return {.ascii = {}, .named = {all}};
  }

  Characters escaped() {
    static const ByteSet digit = byte_range('0', '9'), space = bytes_of(" \t\n\r\f\v"),
                         word = digit | byte_range('a', 'z') | byte_range('A', 'Z') | bytes_of("_");
    const char kind = take_one();
    switch (kind) {
    case 'd':
      return {.ascii = digit};
    case 'D':
      return {.ascii = ~digit};
    case 's':
      return {.ascii = space};
    case 'S':
      return {.ascii = ~space};
    case 'w':
      return {.ascii = word};
    case 'W':
      return {.ascii = ~word};
    case 'n':
      return {.ascii = bytes_of("\n")};
    case 'r':
      return {.ascii = bytes_of("\r")};
    case 't':
      return {.ascii = bytes_of("\t")};
    case 'f':
      return {.ascii = bytes_of("\f")};
    default:
      break;
    }
    if (word.test(static_cast<uint8_t>(kind)) || static_cast<uint8_t>(kind) >= 0x80) {
      at_ -= 2;
      throw unsupported("such an escape is");
    }
    return {.ascii = bytes_of({&kind, 1})};
  }

  // Behind its bracket.
  Characters char_class() {
    const bool is_negated = take("^");
    bool has_escapes = false;
    Characters all;
    for (bool is_first = true; is_first || !begins("]"); is_first = false) {
      if (begins("[") || begins("]")) throw wrong("write \\ before a bracket in a class");
      const size_t begin = at_;
      const Characters one = class_member(has_escapes);
      if (!begins("-") || text_.substr(at_).starts_with("-]")) {
        all.ascii |= one.ascii;
        all.named.insert(all.named.end(), one.named.begin(), one.named.end());
        continue;
      }
      ++at_;
      const Characters last = class_member(has_escapes);
      const auto first_byte = only(one), last_byte = only(last);
      if (!first_byte || !last_byte || *last_byte < *first_byte) {
        at_ = begin;
        throw wrong("expected a range from a character of ASCII to one behind it");
      }
      all.ascii |= byte_range(*first_byte, *last_byte);
    }
    ++at_;
    if (!is_negated) return all;
    if (!all.named.empty()) throw unsupported("all but characters beyond ASCII is");
    // What else is a digit, a letter or a space depends on the dialect.
    return {.ascii = ~all.ascii, .beyond_ascii = !has_escapes};
  }

  Characters class_member(bool& has_escapes) {
    if (!take("\\")) return character();
    const Characters one = escaped();
    has_escapes = has_escapes || one.ascii.count() > 1;
    return one;
  }

  static std::optional<int> only(const Characters& characters) {
    if (characters.ascii.count() != 1) return {};
    int byte = 0;
    while (!characters.ascii.test(static_cast<size_t>(byte))) ++byte;
    return byte;
  }

  Piece one_of(const Characters& characters) {
    // Those that JSON writes with a backslash, and what stands behind it. Other control characters are left out.
    constexpr std::string_view special = "\"\\\b\f\n\r\t", letters = "\"\\bfnrt";
    ByteSet plain = characters.ascii & (byte_range(0x20, 0x7f) | bytes_of(special)), behind_backslash;
    for (size_t i = 0; i < special.size() && spelling_ == Spelling::of_json_strings; ++i) {
      if (plain.test(static_cast<uint8_t>(special[i]))) behind_backslash.set(static_cast<uint8_t>(letters[i]));
      plain.reset(static_cast<uint8_t>(special[i]));
    }
    if (plain.none() && behind_backslash.none() && !characters.beyond_ascii && characters.named.empty())
      throw wrong("no character is one of these");
    return [this, plain, behind_backslash, characters](Node next) {
      std::optional<Node> all;
      const auto add = [&](Node one) { all = all ? g_.either(*all, one) : one; };
      if (plain.any()) add(g_.byte_of(plain, next));
      if (behind_backslash.any()) add(g_.text("\\", g_.byte_of(behind_backslash, next)));
      if (characters.beyond_ascii) add(parts_.beyond_ascii(next));
      for (const std::string& one : characters.named) add(g_.text(one, next));
      return *all;
    };
  }

  Parts& parts_;
  Grammar& g_;
  Spelling spelling_;
  int depth_ = 0;
};

Node spelled(Spelling spelling, std::string_view pattern, Parts& parts, Node next) {
  // A text may be in all of them at once, and each byte is tried from each.
  constexpr size_t most = 1000;
  const size_t before = parts.g.size();
  const Node begin = Pattern(pattern, parts, spelling).matching(next);
  if (parts.g.size() - before > most)
    throw Error(ErrorKind::usage, "pattern: it has more than {} places where a text may be", most)
        .advise("lower its counts");
  return begin;
}

} // namespace

Grammar::Node matching(std::string_view pattern, Parts& parts, Grammar::Node next) {
  return spelled(Spelling::of_json_strings, pattern, parts, next);
}

Grammar of_pattern(std::string_view pattern) {
  Grammar grammar;
  const Grammar::Rule whole = grammar.new_rule();
  Parts parts(grammar);
  grammar.define(whole, spelled(Spelling::plain, pattern, parts, Grammar::end));
  return grammar;
}

} // namespace fvlm::grammar
