#include "data/video_text.h"

#include "data/visual_marks.h"

#include <fmt/format.h>

#include <array>
#include <cstdint>

namespace fvlm {
namespace {

constexpr std::array units{"zero",     "one",     "two",     "three",     "four",     "five",    "six",
                           "seven",    "eight",   "nine",    "ten",       "eleven",   "twelve",  "thirteen",
                           "fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen"};
constexpr std::array tens{"", "", "twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety"};

// As Python prints a timedelta.
std::string clock(int64_t seconds) {
  const int64_t days = seconds / 86400;
  std::string text = days == 0 ? "" : fmt::format("{} day{}, ", days, days == 1 ? "" : "s");
  return text + fmt::format("{}:{:02}:{:02}", seconds / 3600 % 24, seconds / 60 % 60, seconds % 60);
}

} // namespace

std::string in_words(int64_t number) {
  if (number < 20) return units[static_cast<size_t>(number)];
  if (number < 100)
    return fmt::format("{}{}", tens[static_cast<size_t>(number / 10)],
                       number % 10 == 0 ? "" : fmt::format("-{}", in_words(number % 10)));
  if (number < 1000)
    return fmt::format("{} hundred{}", in_words(number / 100),
                       number % 100 == 0 ? "" : fmt::format(" and {}", in_words(number % 100)));
  if (number >= 1000000) return fmt::format("{}", number);
  const int64_t rest = number % 1000;
  return fmt::format("{} thousand{}", in_words(number / 1000),
                     rest == 0 ? "" : fmt::format("{}{}", rest < 100 ? " and " : ", ", in_words(rest)));
}

std::string video_text(std::span<const double> times, double seconds) {
  std::string text = fmt::format("You are provided the following series of {} frames from a {} [H:MM:SS] video.\n",
                                 in_words(std::ssize(times)), clock(static_cast<int64_t>(seconds)));
  for (const double time : times) {
    const auto whole = static_cast<int64_t>(time);
    text += fmt::format("\nFrame from {:02}:{:02}:{}", whole / 60, whole % 60, image_mark);
  }
  return text + "\n\n";
}

} // namespace fvlm
