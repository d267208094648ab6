#include "recipe/schema/mistakes.h"

#include "base/text.h"

#include <fmt/format.h>

#include <algorithm>

namespace fvlm::recipe {
namespace {

std::string all_texts(const std::vector<Mistake>& mistakes, size_t more) {
  std::string out;
  for (const auto& mistake : mistakes) out += mistake.text() + '\n';
  if (more == 0) return out + fmt::format("{} mistakes", mistakes.size());
  return out + fmt::format("{} mistakes, and {} more that are not listed", mistakes.size(),
                           grouped(static_cast<int64_t>(more)));
}

// Truncates a long text, never within a multi-byte character.
void truncate(std::string& text) {
  constexpr size_t max_bytes = 2000;
  if (text.size() <= max_bytes) return;
  size_t end = max_bytes;
  while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xC0) == 0x80) --end;
  text.resize(end);
  text += "...";
}

// Sorted by line, with the files in the order in which they first appear.
std::vector<Mistake> in_reading_order(std::vector<Mistake> mistakes) {
  std::vector<std::string> files;
  auto rank = [&](const Mistake& m) { return std::ranges::find(files, m.origin.file) - files.begin(); };
  for (const auto& mistake : mistakes)
    if (rank(mistake) == std::ssize(files)) files.push_back(mistake.origin.file);
  std::ranges::stable_sort(mistakes, [&](const Mistake& a, const Mistake& b) {
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

RecipeError::RecipeError(std::vector<Mistake> mistakes, size_t more)
    : Error(ErrorKind::recipe,
            mistakes.size() == 1 ? path_and_what(mistakes[0]) : all_texts(in_reading_order(mistakes), more)),
      mistakes_(in_reading_order(std::move(mistakes))), more_(more) {
  if (mistakes_.size() == 1) at(recipe::where(mistakes_[0].origin)).advise(mistakes_[0].advice);
}

void Mistakes::add(Mistake mistake) {
  if (full()) {
    ++more_;
    return;
  }
  for (std::string* text : {&mistake.path, &mistake.what, &mistake.advice}) truncate(*text);
  list_.push_back(std::move(mistake));
}

void Mistakes::advise(std::string_view path, std::string_view advice) {
  if (more_ == 0 && any() && list_.back().path == path && list_.back().advice.empty()) list_.back().advice = advice;
}

void Mistakes::raise() const {
  if (any()) throw RecipeError(list_, more_);
}

} // namespace fvlm::recipe
