// The expected outputs: float64 results of plain formulas, and the tolerance of a plugin's difference from them.
#pragma once
#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>

#include <string>
#include <vector>

namespace fvlm::check {

struct Expected {
  std::string name;
  at::Tensor exact;     // float64
  at::Tensor naive;     // the same formula with every step rounded to the plugin's dtype
  at::ScalarType dtype; // of the output
  double scale = 0;     // magnitude of the terms that cancel, where exact results are small or 0
  bool rounded = false; // the exact result fits float32, so its correctly rounded bits are expected, ties to even
  double terms = 0;     // number of terms of a long sum, each of which may add a float32 rounding
};
using Expectation = std::vector<Expected>;

// Four times the naive formula's largest error plus a few roundings of the largest value, which any order of summation
// stays within.
double tolerance(const Expected& expected);

struct Comparison {
  double ratio = 0;    // largest error / tolerance
  std::string failure; // where ratio > 1: "out[3, 1, 7] is 0.51, should be 0.48 (tolerance 1e-6)"
};
Comparison compare(const at::Tensor& actual, const Expected& expected);

// "float32", as plugins and recipes call it.
std::string name_of(at::ScalarType dtype);

} // namespace fvlm::check
