// A tensor whose numbers are not in its file one after the other: quantized, or in another order.
#pragma once
#include "model/weights/dtype.h"

#include <cstddef>
#include <cstdint>
#include <span>

namespace fvlm {

class WeightReader {
 public:
  // The last dimension of the tensor is `cols`, and `rows` the product of all others.
  WeightReader(int64_t rows, int64_t cols) : rows_(rows), cols_(cols) {}
  virtual ~WeightReader() = default;
  WeightReader(const WeightReader&) = delete;
  WeightReader& operator=(const WeightReader&) = delete;

  virtual DType type() const = 0; // of the numbers that are read
  // Whole rows, from the row `first` on.
  virtual void read(int64_t first, std::span<std::byte> rows) const = 0;
  // Where they lie in one file; empty: in several places.
  virtual std::span<const std::byte> stored() const = 0;

  int64_t rows() const { return rows_; }
  int64_t cols() const { return cols_; }

 private:
  int64_t rows_, cols_;
};

} // namespace fvlm
