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

// Of a matrix that makes heads whose first `rotated` features of `head_dim` are turned in pairs, where files have the
// two rows of a pair next to each other. In memory they are rotated / 2 rows apart, as operations read them.
struct AdjacentPairs {
  int64_t head_dim = 0, rotated = 0; // 0: rows in memory have the order of the file
  // The row of the file that each row in memory is; empty: the same one.
  std::vector<int64_t> rows_in_file(int64_t rows) const;
  bool operator==(const AdjacentPairs&) const = default;
};

struct TensorSpec {
  std::string name; // as transformers, or connector.cpp for the connector, calls it
  std::vector<int64_t> shape;
  Initializer fill;
  // false: it is in files for transformers' sake alone. The model does not use it, and a file may lack it.
  bool parameter = true;
  std::optional<DType> dtype; // none: any floating type
  bool is_fixed = false;      // a number that the model uses and no training changes: a buffer of transformers
  std::string packed_as;      // scheme, of the codes of a quantized weight: see packed_weight.h
  AdjacentPairs pairs = {};
  // Tensors of one layout that name the same stack lie one below the other in memory, in the layout's order, as one
  // operation reads the matrices of all experts. Empty: it is in none.
  std::string stack = {};
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
