// A weight that a file has quantized, read as the numbers that its codes stand for.
#pragma once
#include "model/weights/weight_reader.h"

#include <string>
#include <utility>

namespace fvlm {

class Dequantizer : public WeightReader {
 public:
  // `form`: in which its file has it, for people. `codes`: where they lie in the file.
  Dequantizer(std::string form, std::span<const std::byte> codes, int64_t rows, int64_t cols)
      : WeightReader(rows, cols), form_(std::move(form)), codes_(codes) {}

  // Whole rows of the weight, from the row `first` on.
  virtual void read_rows(int64_t first, std::span<float> rows) const = 0;

  DType type() const final { return DType::f32; }
  void read(int64_t first, std::span<std::byte> rows) const final {
    read_rows(first, {reinterpret_cast<float*>(rows.data()), rows.size() / sizeof(float)});
  }
  std::span<const std::byte> stored() const final { return codes_; }
  std::span<const std::byte> codes() const { return codes_; }
  const std::string& form() const { return form_; }

 private:
  std::string form_;
  std::span<const std::byte> codes_;
};

} // namespace fvlm
