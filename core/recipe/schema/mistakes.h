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

// Thrown for a recipe that cannot become a Plan. Its text() holds every mistake that was kept, in the order of the
// author's lines, and says how many more there are.
class RecipeError : public Error {
 public:
  explicit RecipeError(std::vector<Mistake> mistakes, size_t more = 0);
  const std::vector<Mistake>& mistakes() const { return mistakes_; }
  size_t more() const { return more_; }

 private:
  std::vector<Mistake> mistakes_;
  size_t more_;
};

// The first mistakes; of the others only their number, so that no recipe fills the memory with what is wrong with it.
class Mistakes {
 public:
  static constexpr size_t most = 100;

  void add(Mistake mistake);
  // To the last one, where it is about `path` and has no advice.
  void advise(std::string_view path, std::string_view advice);
  bool full() const { return list_.size() >= most; }
  const std::vector<Mistake>& list() const { return list_; }
  size_t count() const { return list_.size() + more_; }
  bool any() const { return !list_.empty(); }
  void raise() const; // throws a RecipeError when there are any

 private:
  std::vector<Mistake> list_;
  size_t more_ = 0;
};

} // namespace fvlm::recipe
