// The scalar types of a recipe: numbers with a range, strings, booleans, and enums that are written as words.
#pragma once
#include "recipe/schema/type.h"

#include <initializer_list>
#include <limits>
#include <string>
#include <string_view>
#include <vector>

namespace fvlm::recipe {

// The range of allowed numbers: above(0), at_least(0).below(1), ...
struct Range {
  double min = -std::numeric_limits<double>::infinity(), max = std::numeric_limits<double>::infinity();
  bool exclusive_min = false, exclusive_max = false;

  Range below(double limit) const { return {min, limit, exclusive_min, true}; }
  Range at_most(double limit) const { return {min, limit, exclusive_min, false}; }
  bool holds(double number) const;
  std::string text() const; // "above 0 and below 1", "" for any number
};
inline Range above(double limit) {
  return {.min = limit, .exclusive_min = true};
}
inline Range at_least(double limit) {
  return {.min = limit};
}
inline Range between(double min, double max) {
  return {.min = min, .max = max};
}

Ref<double> number(Range range = {});
Ref<int64_t> integer(Range range = {}); // also accepts 1e6
Ref<bool> boolean();
Ref<std::string> text(); // any string but an empty one
Ref<std::string> text_or_empty();
Ref<std::string> path();                     // relative to the working directory; need not exist
Ref<std::string> identifier(bool with_dots); // letters, digits, '_', '-' (and '.'): safe as a folder name and in a path

bool is_utf8(std::string_view text);

Value text_value(Reader& reader, const Assignment& assignment, std::span<const std::string> rest, const Node& node);

struct WordInfo {
  std::string name, doc;
};

// The part of Choice<E> that does not depend on the enum.
class WordsNode {
 public:
  virtual ~WordsNode() = default;
  const std::vector<WordInfo>& words() const { return words_; }

 protected:
  void add(const std::string& name, int value, const std::string& doc);
  bool read_word(Reader& reader, const Value& value, int& out) const;
  Json write_word(int value) const;
  std::string expected_words() const;
  std::string lua_words() const;

 private:
  std::vector<std::string> quoted() const;
  std::vector<WordInfo> words_;
  std::vector<int> values_;
};

// One of several words, each with what it means.
Ref<std::string> word(std::vector<WordInfo> words);

template <class E>
struct Word {
  const char* name;
  E value;
  const char* doc;
};

// An enum, written in a recipe as one of several words.
template <class E>
class Choice : public Type<E>, public WordsNode {
 public:
  explicit Choice(std::initializer_list<Word<E>> words) {
    for (const auto& word : words) add(word.name, static_cast<int>(word.value), word.doc);
  }
  std::string expected() const override { return expected_words(); }
  std::string lua_type() const override { return lua_words(); }
  bool accepts(const Value& value) const override { return std::holds_alternative<std::string>(value.data); }
  bool read(Reader& reader, const Value& value, E& out) const override {
    int word = 0;
    if (!read_word(reader, value, word)) return false;
    out = static_cast<E>(word);
    return true;
  }
  Json write(const E& in, Write) const override { return write_word(static_cast<int>(in)); }
  Value assign(Reader& reader, const Assignment& assignment, const Value*,
               std::span<const std::string> rest) const override {
    return text_value(reader, assignment, rest, *this);
  }
};

template <class E>
Ref<E> choice(std::initializer_list<Word<E>> words) {
  return make_type<Choice<E>>(words);
}

} // namespace fvlm::recipe
