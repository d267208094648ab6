// Two passes of a step through the same linears, each over rows of its own, as the decoder's over frames and over
// frames with text: what a weight's gradient reads of both lies side by side, and one product makes it. The later pass
// goes back first; what came to it waits for the other.
#pragma once
#include "ops/parameter.h"

#include <array>
#include <map>
#include <memory>

namespace fvlm::ops {

// The rows of both passes that meet one weight.
class JointRows {
 public:
  JointRows(const Weight& weight, std::array<int64_t, 2> rows);

  int64_t rows() const { return rows_[0] + rows_[1]; }
  // Of a pass: where the input of its linear is to lie, and the gradient of the linear's output.
  at::Tensor input(size_t pass) const { return part(x_, pass); }
  at::Tensor gradient(size_t pass);
  // Copied where they lie elsewhere. An undefined gradient: none came.
  void take_input(size_t pass, const at::Tensor& x) const;
  void take_gradient(size_t pass, const at::Tensor& d_y);

  // All that came, to multiply: a pass to which nothing came as zeros. Nothing is kept here. Undefined: nothing came.
  struct Factors {
    at::Tensor x, d_y;
  };
  Factors take();

 private:
  at::Tensor part(const at::Tensor& both, size_t pass) const {
    return both.narrow(0, pass == 0 ? 0 : rows_[0], rows_[pass]);
  }

  std::array<int64_t, 2> rows_;
  int64_t width_;
  at::Tensor x_, d_y_; // [rows(), columns]
  std::array<bool, 2> came_{};
};

// One of the two passes; or one that shares with none.
class JointPass {
 public:
  JointPass() = default;
  // In the order in which they go forward. The rows of the later one are known beforehand.
  static std::array<JointPass, 2> both(int64_t later_rows);

  size_t index() const { return index_; }
  // Null where the weight's gradient is this pass's own, or it has none. The earlier pass has to be there first.
  std::shared_ptr<JointRows> of(const Weight& weight, int64_t rows) const;
  // Where so many rows that go into the weight's linear are to lie; undefined: anywhere.
  at::Tensor input(const Weight& weight, int64_t rows) const;

 private:
  struct Joint {
    int64_t later_rows;
    std::map<const void*, std::shared_ptr<JointRows>> weights; // by their gradients' memory
  };
  std::shared_ptr<Joint> joint_;
  size_t index_ = 0;
};

} // namespace fvlm::ops
