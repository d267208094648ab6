#include "recipe/schema/mistakes.h"

#include <fmt/format.h>

#include <algorithm>

namespace fvlm::recipe {
namespace {

std::string all_texts(const std::vector<Mistake>& mistakes) {
  std::string out;
  for (const auto& mistake : mistakes) out += mistake.text() + '\n';
  return out + fmt::format("{} mistakes", mistakes.size());
}

// By line, the files in the order in which they first appear.
std::vector<Mistake> in_reading_order(std::vector<Mistake> mistakes) {
  std::vector<std::string> files;
  auto rank = [&](const Mistake& m) { return std::find(files.begin(), files.end(), m.origin.file) - files.begin(); };
  for (const auto& mistake : mistakes)
    if (rank(mistake) == std::ssize(files)) files.push_back(mistake.origin.file);
  std::stable_sort(mistakes.begin(), mistakes.end(), [&](const Mistake& a, const Mistake& b) {
    return std::pair(rank(a), a.origin.line) < std::pair(rank(b), b.origin.line);
  });
  return mistakes;
}

std::string path_and_what(const Mistake& mistake) {
  return mistake.path.empty() ? mistake.what : mistake.path + ": " + mistake.what;
}

} // namespace

std::string Mistake::text() const {
  Error error(ErrorKind::recipe, path_and_what(*this));
  return error.at(where(origin)).advise(advice).text();
}

RecipeError::RecipeError(std::vector<Mistake> mistakes)
    : Error(ErrorKind::recipe,
            mistakes.size() == 1 ? path_and_what(mistakes[0]) : all_texts(in_reading_order(mistakes))),
      mistakes_(in_reading_order(std::move(mistakes))) {
  if (mistakes_.size() == 1) at(recipe::where(mistakes_[0].origin)).advise(mistakes_[0].advice);
}

void Mistakes::add(Mistake mistake) {
  list_.push_back(std::move(mistake));
}

void Mistakes::raise() const {
  if (any()) throw RecipeError(list_);
}

} // namespace fvlm::recipe
