// A weight that a file has quantized, read as the numbers that its codes stand for.
#pragma once
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>

namespace fvlm {

class Dequantizer {
 public:
  // `form`: in which its file has it, for people. `codes`: where they lie in the file.
  Dequantizer(std::string form, std::span<const std::byte> codes, int64_t rows, int64_t cols)
      : form_(std::move(form)), codes_(codes), rows_(rows), cols_(cols) {}
  virtual ~Dequantizer() = default;
  Dequantizer(const Dequantizer&) = delete;
  Dequantizer& operator=(const Dequantizer&) = delete;

  // Whole rows of the weight, from the row `first` on.
  virtual void read_rows(int64_t first, std::span<float> rows) const = 0;

  const std::string& form() const { return form_; }
  std::span<const std::byte> codes() const { return codes_; }
  int64_t rows() const { return rows_; }
  int64_t cols() const { return cols_; }

 private:
  std::string form_;
  std::span<const std::byte> codes_;
  int64_t rows_, cols_;
};

} // namespace fvlm
