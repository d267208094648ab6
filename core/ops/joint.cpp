#include "ops/joint.h"

#include <ATen/ops/empty.h>

#include <utility>

namespace fvlm::ops {
namespace {

void lay(const at::Tensor& rows, const at::Tensor& place) {
  if (rows.const_data_ptr() != place.const_data_ptr()) place.copy_(rows);
}

} // namespace

JointRows::JointRows(const Weight& weight, std::array<int64_t, 2> rows)
    : rows_(rows), width_(weight.value().size(0)),
      x_(at::empty({rows[0] + rows[1], weight.value().size(1)}, weight.value().options())) {}

at::Tensor JointRows::gradient(size_t pass) {
  if (!d_y_.defined()) d_y_ = at::empty({rows(), width_}, x_.options());
  return part(d_y_, pass);
}

void JointRows::take_input(size_t pass, const at::Tensor& x) const {
  lay(x, input(pass));
}

void JointRows::take_gradient(size_t pass, const at::Tensor& d_y) {
  if (!d_y.defined()) return;
  lay(d_y, gradient(pass));
  came_[pass] = true;
}

JointRows::Factors JointRows::take() {
  if (came_[0] || came_[1])
    for (const size_t pass : {0, 1})
      if (!came_[pass]) {
        input(pass).zero_();
        gradient(pass).zero_();
      }
  return {std::exchange(x_, {}), std::exchange(d_y_, {})};
}

std::array<JointPass, 2> JointPass::both(int64_t later_rows) {
  std::array<JointPass, 2> passes;
  passes[0].joint_ = passes[1].joint_ = std::make_shared<Joint>(Joint{later_rows, {}});
  passes[1].index_ = 1;
  return passes;
}

std::shared_ptr<JointRows> JointPass::of(const Weight& weight, int64_t rows) const {
  if (!joint_ || !weight.trains()) return nullptr;
  auto& found = joint_->weights[weight.gradient().const_data_ptr()];
  if (!found && index_ == 0) found = std::make_shared<JointRows>(weight, std::array{rows, joint_->later_rows});
  return found;
}

at::Tensor JointPass::input(const Weight& weight, int64_t rows) const {
  const auto joint = of(weight, rows);
  return joint ? joint->input(index_) : at::Tensor();
}

} // namespace fvlm::ops
