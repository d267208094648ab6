#include "ops/shared_weight_gradient.h"

#include <ATen/ops/empty.h>

#include <utility>

namespace fvlm::ops {
namespace {

void copy_unless_same(const at::Tensor& rows, const at::Tensor& destination) {
  if (rows.const_data_ptr() != destination.const_data_ptr()) destination.copy_(rows);
}

} // namespace

SharedWeightGradient::SharedWeightGradient(const Weight& weight, std::array<int64_t, 2> rows)
    : rows_(rows), width_(weight.value().size(0)),
      x_(at::empty({rows[0] + rows[1], weight.value().size(1)}, weight.value().options())) {}

at::Tensor SharedWeightGradient::output_gradient(size_t pass) {
  if (!d_y_.defined()) d_y_ = at::empty({rows(), width_}, x_.options());
  return part(d_y_, pass);
}

void SharedWeightGradient::set_input(size_t pass, const at::Tensor& x) const {
  copy_unless_same(x, input(pass));
}

void SharedWeightGradient::set_output_gradient(size_t pass, const at::Tensor& d_y) {
  if (!d_y.defined()) return;
  copy_unless_same(d_y, output_gradient(pass));
  received_[pass] = true;
}

SharedWeightGradient::Operands SharedWeightGradient::take_operands() {
  if (received_[0] || received_[1])
    for (const size_t pass : {0, 1})
      if (!received_[pass]) {
        input(pass).zero_();
        output_gradient(pass).zero_();
      }
  return {std::exchange(x_, {}), std::exchange(d_y_, {})};
}

std::array<SharedGradientPass, 2> SharedGradientPass::make_pair(int64_t later_rows) {
  std::array<SharedGradientPass, 2> passes;
  passes[0].shared_ = passes[1].shared_ = std::make_shared<Shared>(Shared{later_rows, {}});
  passes[1].index_ = 1;
  return passes;
}

std::shared_ptr<SharedWeightGradient> SharedGradientPass::gradient_of(const Weight& weight, int64_t rows) const {
  if (!shared_ || !weight.requires_grad()) return nullptr;
  auto& found = shared_->weights[weight.value().const_data_ptr()];
  if (!found && index_ == 0)
    found = std::make_shared<SharedWeightGradient>(weight, std::array{rows, shared_->later_rows});
  return found;
}

at::Tensor SharedGradientPass::input(const Weight& weight, int64_t rows) const {
  const auto shared = gradient_of(weight, rows);
  return shared ? shared->input(index_) : at::Tensor();
}

} // namespace fvlm::ops
