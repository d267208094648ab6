#include "ops/tape.h"

#include "base/error.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/zeros.h>

namespace fvlm::ops {
namespace {

// Whether nothing else refers to this tensor's memory.
bool is_sole_owner(const at::Tensor& tensor) {
  return tensor.use_count() == 1 && tensor.storage().use_count() == 1;
}

} // namespace

void Gradient::add_with_bias_gradient(at::Tensor gradient) {
  add(std::move(gradient));
  has_bias_gradient_ = true;
}

void Gradient::add(at::Tensor gradient) {
  if (has_bias_gradient_)
    throw Error(ErrorKind::internal, "a gradient was added to a value after its bias gradient had been computed");
  if (!sum_.defined()) {
    sum_ = std::move(gradient);
  } else if (is_sole_owner(sum_)) {
    sum_.add_(gradient);
  } else if (is_sole_owner(gradient)) {
    sum_ = std::move(gradient.add_(sum_));
  } else {
    sum_ = sum_ + gradient;
  }
}

at::Tensor& Gradient::accumulator(at::IntArrayRef shape, const at::TensorOptions& options) {
  if (has_bias_gradient_)
    throw Error(ErrorKind::internal,
                "a part of a gradient was added to a value after its bias gradient had been computed");
  if (!sum_.defined())
    sum_ = at::zeros(shape, options);
  else if (!is_sole_owner(sum_))
    sum_ = sum_.clone();
  return sum_;
}

at::Tensor Gradient::take_exclusive() {
  if (sum_.defined() && !is_sole_owner(sum_)) sum_ = sum_.clone();
  return take();
}

} // namespace fvlm::ops
