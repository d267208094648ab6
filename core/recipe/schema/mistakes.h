// Mistakes: what is wrong with a recipe, collected so that an author sees all of it at once.
#pragma once
#include "base/error.h"
#include "recipe/value.h"

#include <string>
#include <vector>

namespace fvlm::recipe {

struct Mistake {
  Origin origin;
  std::string path;   // "stages.align.optimizer.lr"; empty: the recipe as a whole
  std::string what;   // "expected a number above 0, got a string"
  std::string advice; // "did you mean 'lr'?"; may be empty

  std::string text() const; // "mine.lua:12: stages.align.optimizer.lr: expected ..."
};

// Thrown for a recipe that cannot become a Plan. Its text() holds every mistake, in the order of the author's lines.
class RecipeError : public Error {
 public:
  explicit RecipeError(std::vector<Mistake> mistakes);
  const std::vector<Mistake>& mistakes() const { return mistakes_; }

 private:
  std::vector<Mistake> mistakes_;
};

class Mistakes {
 public:
  void add(Mistake mistake);
  const std::vector<Mistake>& list() const { return list_; }
  bool any() const { return !list_.empty(); }
  void raise() const; // throws a RecipeError when there are any

 private:
  std::vector<Mistake> list_;
};

} // namespace fvlm::recipe
