// What a plugin's outputs have to be: float64 results of plain formulas, and how far a plugin may stray from them.
#pragma once
#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>

#include <string>
#include <vector>

namespace fvlm::check {

struct Expected {
  std::string name;
  at::Tensor exact;     // float64
  at::Tensor naive;     // what the same formula gives when every step of it is rounded to the plugin's dtype
  at::ScalarType dtype; // of the output
  double scale = 0;     // the size of what cancels where exact results are small or 0
  bool rounded = false; // the exact result can be had in float32: what is expected are its bits, ties to even
  double terms = 0;     // of a long sum: how many it has, each of which float32 may round
};
using Expectation = std::vector<Expected>;

// Four times the naive formula's largest error, and a few roundings of the largest value: what any honest order of
// summation stays within.
double tolerance(const Expected& expected);

struct Comparison {
  double ratio = 0;    // largest error / tolerance
  std::string trouble; // where ratio > 1: "out[3, 1, 7] is 0.51, should be 0.48 (tolerance 1e-6)"
};
Comparison compare(const at::Tensor& actual, const Expected& expected);

// "float32", as plugins and recipes call it.
std::string name_of(at::ScalarType dtype);

} // namespace fvlm::check
