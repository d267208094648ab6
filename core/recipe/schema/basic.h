// The simplest types of a recipe: numbers with their range, texts, switches, one of several words.
#pragma once
#include "recipe/schema/type.h"

#include <initializer_list>
#include <limits>
#include <string>
#include <string_view>
#include <vector>

namespace fvlm::recipe {

// Which numbers are allowed: above(0), at_least(0).below(1), ...
struct Range {
  double least = -std::numeric_limits<double>::infinity(), most = std::numeric_limits<double>::infinity();
  bool without_least = false, without_most = false;

  Range below(double limit) const { return {least, limit, without_least, true}; }
  Range at_most(double limit) const { return {least, limit, without_least, false}; }
  bool holds(double number) const;
  std::string text() const; // "above 0 and below 1", "" for any number
};
inline Range above(double limit) {
  return {.least = limit, .without_least = true};
}
inline Range at_least(double limit) {
  return {.least = limit};
}
inline Range between(double least, double most) {
  return {.least = least, .most = most};
}

Ref<double> number(Range range = {});
Ref<int64_t> whole(Range range = {}); // 1e6 is a whole number too
Ref<bool> flag();
Ref<std::string> text(); // any text but an empty one
Ref<std::string> text_or_empty();
Ref<std::string> path();                // of a file or folder, as the working directory sees it; need not exist
Ref<std::string> label(bool with_dots); // letters, digits, '_', '-' (and '.'): safe as a folder and in a path

bool is_utf8(std::string_view text);

Value text_value(Reader& reader, const Assignment& assignment, std::span<const std::string> rest, const Node& node);

struct WordInfo {
  std::string name, doc;
};

// One of several words: what Choice<E> does without knowing E.
class WordsNode {
 public:
  virtual ~WordsNode() = default;
  const std::vector<WordInfo>& words() const { return words_; }

 protected:
  void add(const char* name, int value, const char* doc);
  bool read_word(Reader& reader, const Value& value, int& out) const;
  Json write_word(int value) const;
  std::string expected_words() const;
  std::string lua_words() const;

 private:
  std::vector<std::string> quoted() const;
  std::vector<WordInfo> words_;
  std::vector<int> values_;
};

template <class E>
struct Word {
  const char* name;
  E value;
  const char* doc;
};

// One of several words, as an enum.
template <class E>
class Choice : public Type<E>, public WordsNode {
 public:
  explicit Choice(std::initializer_list<Word<E>> words) {
    for (const auto& word : words) add(word.name, static_cast<int>(word.value), word.doc);
  }
  std::string expected() const override { return expected_words(); }
  std::string lua_type() const override { return lua_words(); }
  bool takes(const Value& value) const override { return std::holds_alternative<std::string>(value.data); }
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
