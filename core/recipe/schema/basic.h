// The scalar types of a recipe: numbers with a range, strings, booleans, and enums that are written as words.
#pragma once
#include "recipe/schema/type.h"

#include <algorithm>
#include <initializer_list>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace fvlm::recipe {

// The range of allowed numbers: above(0), at_least(0).below(1), ...
struct Range {
  double min = -std::numeric_limits<double>::infinity(), max = std::numeric_limits<double>::infinity();
  bool exclusive_min = false, exclusive_max = false;

  Range below(double limit) const { return {min, limit, exclusive_min, true}; }
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

Value text_value(Reader& reader, const Assignment& assignment, std::span<const std::string> rest, const Node& node);

struct WordInfo {
  std::string name, doc;
};

// The part of Choice<T> that does not depend on T.
class WordsNode {
 public:
  explicit WordsNode(std::vector<WordInfo> words) : words_(std::move(words)) {}
  virtual ~WordsNode() = default;
  const std::vector<WordInfo>& words() const { return words_; }

 protected:
  // The index of a word. Returns nothing and reports a mistake where it is none of these.
  std::optional<size_t> find_word(Reader& reader, const Value& value) const;
  std::string expected_words() const;
  std::string lua_words() const;

 private:
  std::vector<std::string> quoted() const;
  std::vector<WordInfo> words_;
};

// One of several values, written in a recipe as words.
template <class T>
class Choice : public Type<T>, public WordsNode {
 public:
  // values: of the words, in their order.
  Choice(std::vector<WordInfo> words, std::vector<T> values)
      : WordsNode(std::move(words)), values_(std::move(values)) {}
  std::string expected() const override { return expected_words(); }
  std::string lua_type() const override { return lua_words(); }
  bool accepts(const Value& value) const override { return std::holds_alternative<std::string>(value.data); }
  bool read(Reader& reader, const Value& value, T& out) const override {
    const auto word = find_word(reader, value);
    if (word) out = values_[*word];
    return word.has_value();
  }
  Json write(const T& in, Write) const override {
    const auto found = std::ranges::find(values_, in);
    return found == values_.end() ? Json() : Json(words()[static_cast<size_t>(found - values_.begin())].name);
  }
  Value assign(Reader& reader, const Assignment& assignment, const Value*,
               std::span<const std::string> rest) const override {
    return text_value(reader, assignment, rest, *this);
  }

 private:
  std::vector<T> values_;
};

template <class E>
struct Word {
  const char* name;
  E value;
  const char* doc;
};

// An enum.
template <class E>
Ref<E> choice(std::initializer_list<Word<E>> words) {
  std::vector<WordInfo> infos;
  std::vector<E> values;
  for (const auto& [name, value, doc] : words) {
    infos.push_back({name, doc});
    values.push_back(value);
  }
  return make_type<Choice<E>>(std::move(infos), std::move(values));
}

// Words that no enum stands for, each with what it means.
Ref<std::string> word(std::vector<WordInfo> words);

} // namespace fvlm::recipe
