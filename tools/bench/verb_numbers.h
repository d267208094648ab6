// Numbers in the values of options.
#pragma once
#include "base/error.h"
#include "base/text.h"

#include <charconv>
#include <string>
#include <vector>

namespace fvlm::cli {

template <class Number>
Number number_in(const std::string& option, const std::string& text, const char* example) {
  Number number{};
  const auto end = std::from_chars(text.data(), text.data() + text.size(), number);
  if (end.ec != std::errc() || end.ptr != text.data() + text.size())
    throw Error(ErrorKind::usage, "--{}: '{}' is no number", option, text).advise("--{} {}", option, example);
  return number;
}

// Of a list of whole numbers, as in the example: "1,8,32".
inline std::vector<int64_t> numbers_in(const std::string& option, const std::string& list, const char* example) {
  std::vector<int64_t> numbers;
  for (const std::string& text : split(list, ',')) numbers.push_back(number_in<int64_t>(option, text, example));
  return numbers;
}

} // namespace fvlm::cli
