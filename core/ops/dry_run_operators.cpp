// The operators of ATen that LibTorch implements for the meta device in Python alone, as far as the engine's models and
// objectives call them: each allocates its results and computes nothing. Without one of them, a dry run ends with
// LibTorch's NotImplementedError.
#include <ATen/ExpandUtils.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/result_type.h>
#include <torch/library.h>

#include <array>
#include <optional>
#include <tuple>

namespace fvlm::ops {
namespace {

using at::Tensor;

Tensor abs(const Tensor& x) {
  return at::empty_like(x);
}

Tensor bmm_in_type(const Tensor& a, const Tensor& b, at::ScalarType type) {
  return at::empty({a.size(0), a.size(1), b.size(2)}, a.options().dtype(type));
}

Tensor logical_not(const Tensor& x) {
  return at::empty_like(x, x.options().dtype(at::kBool));
}

std::tuple<Tensor, Tensor> log_sigmoid_forward(const Tensor& x) {
  return {at::empty_like(x), at::empty_like(x)};
}

Tensor where(const Tensor& condition, const Tensor& x, const Tensor& y) {
  const auto sizes = at::infer_size(at::infer_size(condition.sizes(), x.sizes()), y.sizes());
  return at::empty(sizes, condition.options().dtype(at::result_type(x, y)));
}

Tensor index_select(const Tensor& x, int64_t dim, const Tensor& index) {
  auto sizes = x.sizes().vec();
  if (!sizes.empty()) sizes[static_cast<size_t>(at::maybe_wrap_dim(dim, x.dim()))] = index.numel();
  return at::empty(sizes, x.options());
}

Tensor& index_select_out(const Tensor&, int64_t, const Tensor&, Tensor& out) {
  return out;
}

Tensor bucketize(const Tensor& x, const Tensor&, bool int32, bool) {
  return at::empty(x.sizes(), x.options().dtype(int32 ? at::kInt : at::kLong));
}

std::tuple<Tensor, Tensor, Tensor> native_layer_norm(const Tensor& x, at::IntArrayRef shape,
                                                     const std::optional<Tensor>&, const std::optional<Tensor>&,
                                                     double) {
  auto sizes = x.sizes().vec();
  for (size_t i = sizes.size() - shape.size(); i < sizes.size(); ++i) sizes[i] = 1;
  return {at::empty(x.sizes(), x.options()), at::empty(sizes, x.options()), at::empty(sizes, x.options())};
}

std::tuple<Tensor, Tensor, Tensor>
native_layer_norm_backward(const Tensor&, const Tensor& x, at::IntArrayRef shape, const Tensor&, const Tensor&,
                           const std::optional<Tensor>&, const std::optional<Tensor>&, std::array<bool, 3> required) {
  const auto result = [&](bool is_required, at::IntArrayRef sizes) {
    return is_required ? at::empty(sizes, x.options()) : Tensor();
  };
  return {result(required[0], x.sizes()), result(required[1], shape), result(required[2], shape)};
}

} // namespace

TORCH_LIBRARY_IMPL(aten, Meta, library) {
  library.impl("abs", abs);
  library.impl("bmm.dtype", bmm_in_type);
  library.impl("bucketize.Tensor", bucketize);
  library.impl("index_select", index_select);
  library.impl("index_select.out", index_select_out);
  library.impl("log_sigmoid_forward", log_sigmoid_forward);
  library.impl("logical_not", logical_not);
  library.impl("native_layer_norm", native_layer_norm);
  library.impl("native_layer_norm_backward", native_layer_norm_backward);
  library.impl("where.self", where);
}

} // namespace fvlm::ops
