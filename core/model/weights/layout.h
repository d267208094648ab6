// What tensors a part of the model consists of, and whether a file holds just these.
#pragma once
#include "model/weights/safetensors.h"

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace fvlm {

// How a fresh tensor is filled.
struct Initializer {
  enum class Kind { constant, normal, uniform, log_uniform };
  Kind kind = Kind::constant;
  // constant: the value; normal: standard deviation about 0; uniform: within -value .. value; log_uniform: the
  // logarithm of a number within 0.01 .. value
  double value = 0;
};

int64_t elements_of(const std::vector<int64_t>& shape);

struct TensorSpec {
  std::string name; // as transformers, or connector.cpp for the connector, calls it
  std::vector<int64_t> shape;
  Initializer fill;
  // false: it is in files for transformers' sake alone. The model does not use it, and a file may lack it.
  bool parameter = true;
  std::optional<DType> dtype; // none: any floating type
  bool is_fixed = false;      // a number that the model uses and no training changes: a buffer of transformers
  std::string packed_as;      // scheme, of the codes of a quantized weight: see packed_weight.h
};

struct WeightLayout {
  std::vector<TensorSpec> tensors; // in the order of the model's forward
  std::string optional_prefix;     // that every name in a file may begin with
  // Names, with at most one '*', of what else may be in a file and is passed over: buffers, heads of other tasks.
  std::vector<std::string> ignored;
  // A file may hold `tied_copy` besides `tied_to` if it has the same bytes.
  std::string tied_copy, tied_to;
};

// The tensors of `file` in the layout's order, null for what is no parameter and not there. Throws Error(data) that
// names every tensor that is missing, unknown, misshapen or not floating.
std::vector<const TensorView*> bind(const Safetensors& file, const WeightLayout& layout);

} // namespace fvlm
