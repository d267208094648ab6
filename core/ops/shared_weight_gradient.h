// One weight gradient for two passes of a step through the same linears, each with rows of its own: the decoder over
// the frames, and the decoder over frames and text. The inputs and output gradients of both passes lie next to each
// other in memory, so that a single matrix product computes the weight's gradient. The later pass runs its backward
// first; its rows wait for those of the other.
#pragma once
#include "ops/parameter.h"

#include <array>
#include <map>
#include <memory>

namespace fvlm::ops {

// The rows of both passes for one weight. Pass 0 runs forward first.
class SharedWeightGradient {
 public:
  SharedWeightGradient(const Weight& weight, std::array<int64_t, 2> rows);

  int64_t rows() const { return rows_[0] + rows_[1]; }
  // The memory of a pass's linear input, and of the gradient of its linear output.
  at::Tensor input(size_t pass) const { return part(x_, pass); }
  at::Tensor output_gradient(size_t pass);
  // Copies, unless the rows already lie there. An undefined gradient means that the pass received none.
  void set_input(size_t pass, const at::Tensor& x) const;
  void set_output_gradient(size_t pass, const at::Tensor& d_y);

  // Moves out the operands of the product. The rows of a pass without a gradient are zeros; both tensors are undefined
  // where neither pass received one.
  struct Operands {
    at::Tensor x, d_y;
  };
  Operands take_operands();

 private:
  at::Tensor part(const at::Tensor& both, size_t pass) const {
    return both.narrow(0, pass == 0 ? 0 : rows_[0], rows_[pass]);
  }

  std::array<int64_t, 2> rows_;
  int64_t width_;
  at::Tensor x_, d_y_; // [rows(), columns]
  std::array<bool, 2> received_{};
};

// Identifies one of the two passes. A default-constructed one shares no gradients.
class SharedGradientPass {
 public:
  SharedGradientPass() = default;
  // Both passes, in forward order. The number of rows of the later one has to be known in advance.
  static std::array<SharedGradientPass, 2> make_pair(int64_t later_rows);

  size_t index() const { return index_; }
  // Null where the pass computes the weight's gradient by itself, or the weight has none. The earlier pass has to ask
  // first, for it creates the object.
  std::shared_ptr<SharedWeightGradient> gradient_of(const Weight& weight, int64_t rows) const;
  // Memory in which the input of the weight's linear should be computed, to save a copy; undefined where any will do.
  at::Tensor input(const Weight& weight, int64_t rows) const;

 private:
  struct Shared {
    int64_t later_rows;
    std::map<const void*, std::shared_ptr<SharedWeightGradient>> weights; // by the address of their value
  };
  std::shared_ptr<Shared> shared_;
  size_t index_ = 0;
};

} // namespace fvlm::ops
