// A low-rank adapter of a linear's frozen weight: LoRA (Hu et al., 2021), or DoRA (Liu et al., 2024) where it has a
// magnitude. With W [out, in], A [rank, in], B [out, rank], and s the scale:
//   LoRA: y = x W^T + s dropout(x) A^T B^T + bias
//   DoRA: y = (m / n) * (x W^T + s dropout(x) A^T B^T) + bias, n = the norms of the rows of W + s B A, which pass no
//         gradient.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

namespace fvlm::ops {

struct Parameter;

// Which of several adapters each row of a pass is of, where one Adapter has the columns of all of them.
class RowAdapters {
 public:
  // int32 [rows]; 0: of none. To be called before each pass.
  void select(const at::Tensor& of_rows);
  // `owners`: which adapter each column is of. Ones where that is the row's, zeros elsewhere: [rows, columns].
  const at::Tensor& mask(const std::vector<int32_t>& owners, at::ScalarType dtype);

 private:
  at::Tensor of_rows_;
  std::map<std::vector<int32_t>, at::Tensor> owners_; // on the device
  std::map<std::vector<int32_t>, at::Tensor> masks_;  // of this pass
};

struct Adapter {
  Parameter* a = nullptr;
  Parameter* b = nullptr;
  Parameter* magnitude = nullptr; // [out]; null: LoRA
  double scale = 1;
  double dropout = 0;                     // of what A reads, while a tape records
  at::Tensor dropout_seed;                // int64, a scalar that the model sets before each pass
  int64_t id = 0;                         // tells the masks of adapters apart
  std::shared_ptr<RowAdapters> rows = {}; // null: the adapter is that of all rows
  std::vector<int32_t> owners = {};       // of A's rows, where there is `rows`
  // float32 or wider [out]: squared norms of the rows of W, computed when they are first needed. Threads that read one
  // frozen model share them.
  mutable at::Tensor base_square;
  mutable std::once_flag base_square_once;
};

// Ones and zeros over x's elements, the ones times 1 / (1 - p): a function of the seed, the id and the place alone, so
// that an activation that is computed again meets the same mask.
at::Tensor dropout_mask(const at::Tensor& x, double p, const at::Tensor& seed, int64_t id);

} // namespace fvlm::ops
