#include "ops/merged_outputs.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/exp2.h>
#include <ATen/ops/logaddexp2.h>
#include <ATen/ops/where.h>

#include <limits>

namespace fvlm::ops {
namespace {

constexpr double infinity = std::numeric_limits<double>::infinity();

at::Tensor without_keys_last(const at::Tensor& log_sum_exp) {
  return at::where(log_sum_exp == infinity, -infinity, log_sum_exp);
}

} // namespace

at::ScalarType type_of_sums(const at::Tensor& x) {
  return x.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
}

MergedOutputs::MergedOutputs(const Attention::Output& first)
    : out_(first.out.to(type_of_sums(first.out))), log_sum_exp_(without_keys_last(first.saved.front())) {}

void MergedOutputs::add(const Attention::Output& part, int64_t first) {
  const int64_t rows = part.out.size(0);
  const at::Tensor before = log_sum_exp_.narrow(0, first, rows), own = without_keys_last(part.saved.front()),
                   sum = at::logaddexp2(before, own), of_rows = out_.narrow(0, first, rows);
  const auto share = [&](const at::Tensor& of) {
    return at::where(sum == -infinity, 0, at::exp2(of - sum)).unsqueeze(2);
  };
  of_rows.mul_(share(before)).addcmul_(part.out.to(out_.scalar_type()), share(own));
  before.copy_(sum);
}

MergedOutput MergedOutputs::finish(const at::Tensor& q, const at::Tensor& into) const {
  MergedOutput merged{output_or_new(into, q.sizes(), q.scalar_type(), q.device()),
                      at::where(log_sum_exp_ == -infinity, infinity, log_sum_exp_)};
  merged.out.copy_(out_);
  return merged;
}

} // namespace fvlm::ops
