// Mistakes: what is wrong with a recipe, collected so that an author sees all of it at once.
#pragma once
#include "base/error.h"
#include "recipe/value.h"

#include <string>
#include <string_view>
#include <vector>

namespace fvlm::recipe {

struct Mistake {
  Origin origin;
  std::string path;   // "stages.align.optimizer.lr"; empty: the recipe as a whole
  std::string what;   // "expected a number above 0, got a string"
  std::string advice; // "did you mean 'lr'?"; may be empty

  std::string text() const; // "mine.lua:12: stages.align.optimizer.lr: expected ..."
};

// Thrown for a recipe that cannot be resolved to a Plan. Its text() lists the mistakes in the order of their lines, and
// how many more there are.
class RecipeError : public Error {
 public:
  explicit RecipeError(std::vector<Mistake> mistakes, size_t more = 0);
  const std::vector<Mistake>& mistakes() const { return mistakes_; }
  size_t more() const { return more_; }

 private:
  std::vector<Mistake> mistakes_;
  size_t more_;
};

// Keeps the first mistakes and only counts the others, so that no recipe can fill the memory with mistakes.
class Mistakes {
 public:
  static constexpr size_t max_listed = 100;

  void add(Mistake mistake);
  // Adds advice to the last mistake, if that is about `path` and has none.
  void advise(std::string_view path, std::string_view advice);
  bool full() const { return list_.size() >= max_listed; }
  const std::vector<Mistake>& list() const { return list_; }
  size_t count() const { return list_.size() + more_; }
  bool any() const { return !list_.empty(); }
  void raise() const; // throws a RecipeError when there are any

 private:
  std::vector<Mistake> list_;
  size_t more_ = 0;
};

} // namespace fvlm::recipe
