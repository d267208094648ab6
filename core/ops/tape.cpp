#include "ops/tape.h"

#include "base/error.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <iterator>

namespace fvlm::ops {
namespace {

// Whether nothing else refers to this tensor's memory.
bool is_sole_owner(const at::Tensor& tensor) {
  return tensor.use_count() == 1 && tensor.storage().use_count() == 1;
}

} // namespace

at::Tensor Gradient::allocate_over(const at::Tensor& data) {
  if ((destination_ && !destination_is_new_) || !is_sole_owner(data)) return allocate_like(data);
  destination_ = {};
  return data;
}

void Gradient::add_with_bias_gradient(at::Tensor gradient) {
  add(std::move(gradient));
  has_bias_gradient_ = true;
}

void Gradient::announce(const Columns& columns) {
  const bool overlaps = std::ranges::any_of(announced_, [&](const Columns& other) { return columns.overlaps(other); });
  if (!overlaps) announced_.push_back(columns);
}

std::pair<at::Tensor, bool> Gradient::destination(const Columns& columns, at::IntArrayRef shape,
                                                  const at::TensorOptions& options) {
  if (!sum_.defined()) {
    sum_ = destination_ ? std::exchange(destination_, {})() : at::empty(shape, options);
    std::ranges::copy_if(announced_, std::back_inserter(unwritten_),
                         [&](const Columns& other) { return !columns.overlaps(other); });
    unwritten_.push_back(columns);
    std::ranges::sort(unwritten_, {}, &Columns::first);
    std::vector<Columns> rest;
    int64_t end = 0;
    for (const Columns& each : unwritten_) {
      if (each.first > end) rest.push_back({end, each.first - end});
      end = each.first + each.count;
    }
    if (shape[1] > end) rest.push_back({end, shape[1] - end});
    zero(rest);
  }
  const bool overwrites = std::erase(unwritten_, columns) > 0;
  if (!overwrites) (void)accumulator(shape, options);
  return {sum_.narrow(1, columns.first, columns.count), overwrites};
}

void Gradient::zero(const std::vector<Columns>& columns) {
  for (const Columns& each : columns) sum_.narrow(1, each.first, each.count).zero_();
}

void Gradient::add(at::Tensor gradient) {
  zero_unwritten();
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
  zero_unwritten();
  if (!sum_.defined())
    sum_ = at::zeros(shape, options);
  else if (!is_sole_owner(sum_))
    sum_ = sum_.clone();
  return sum_;
}

at::Tensor Gradient::take_exclusive() {
  zero_unwritten();
  if (sum_.defined() && !is_sole_owner(sum_)) sum_ = sum_.clone();
  return take();
}

} // namespace fvlm::ops
