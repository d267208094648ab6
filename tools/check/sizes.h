// Sizes just above powers of two, where loops, tables and narrow integers end, up to what shipped recipes use: rows of
// 2048 and 8192, 49152 words, 8192 positions. One dimension is swept at a time while the others stay small.
#pragma once
#include "check/trial.h"

#include <cstdint>
#include <vector>

namespace fvlm::check {

// 2^first + 1 to 2^last + 1, which no vector divides.
inline std::vector<int64_t> just_above(int first, int last) {
  std::vector<int64_t> sizes;
  for (int power = first; power <= last; ++power) sizes.push_back((int64_t{1} << power) + 1);
  return sizes;
}

// 2^first + 64 to 2^last + 64, which fast paths take.
inline std::vector<int64_t> tiles_above(int first, int last) {
  std::vector<int64_t> sizes;
  for (int power = first; power <= last; ++power) sizes.push_back((int64_t{1} << power) + 64);
  return sizes;
}

// The same trial with a tolerance that allows a float32 rounding for each of so many terms of its sums.
inline Trial with_sums_of(int64_t terms, Trial trial) {
  trial.expect = [expectation = trial.expect, terms] {
    Expectation all = expectation();
    for (Expected& one : all) one.terms = static_cast<double>(terms);
    return all;
  };
  return trial;
}

} // namespace fvlm::check
