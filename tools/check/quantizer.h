// Quantizer trials: pack, unpack, linear and fake quantisation of one weight.
#pragma once
#include "check/context.h"

#include <fvlm/quantizer.h>

namespace fvlm::check {

enum class Weights { normal, zero_rows, constant, negative, outliers, ties };

struct QuantizerCase {
  at::ScalarType dtype = at::kFloat;
  int64_t rows = 24, cols = 64, tokens = 9;
  int64_t spare_tokens = 0; // by which the query's tokens exceed those of the linear
  Weights weights = Weights::normal;
  double magnitude = 0.1;
  bool bias = true;
  bool weighted = false;     // pack gets an importance of each column
  bool convert_only = false; // the query's tokens is 0, and no linear is called
  uint32_t options = 0;      // FVLM_QUANTIZED_*; linear_gradient and fake quantization are not called then
  uint64_t seed = 1;
};

struct QuantizerNumbers {
  at::Tensor weight, x, bias, d_y, d_out, importance, residual, norm_weight;
};

QuantizerNumbers quantizer_numbers(const QuantizerCase& c);
Trial quantizer_trial(const QuantizerCase& c);
std::vector<Trial> quantizer_cases(const std::vector<QuantizerCase>& cases);
at::ScalarType quantizer_dtype(Context& context);

} // namespace fvlm::check
