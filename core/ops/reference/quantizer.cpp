// The kind quantizer, schemes int8 and int4, as fvlm/quantizer.h specifies them.
#include "ops/reference/common.h"

#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/full.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/where.h>

namespace fvlm::ops::reference {
namespace {

using at::Tensor;

// The columns that share a scale.
template <int width>
int64_t group_of(int64_t cols) {
  return width == 8 ? cols : sdk::int4_group(cols);
}

// Codes [rows, groups, columns of a group] in the weight's accumulation type, and float32 scales [rows, groups, 1].
struct Quantized {
  Tensor codes, scales;
};

template <int width>
struct Rounded {
  Tensor exact, codes; // before clipping, and the codes
};
template <int width>
Rounded<width> round_to_codes(const Tensor& weight, const Tensor& scales) {
  const Tensor divisor = at::where(scales.eq(0), 1, scales).to(weight.scalar_type());
  const Tensor exact = weight / divisor;
  return {exact, exact.round().clamp(width == 8 ? -127 : -8, width == 8 ? 127 : 7)};
}

// A divisor as a tensor: on CUDA, ATen turns division by a scalar into multiplication by its reciprocal.
Tensor divided(const Tensor& by, double divisor) {
  return by / at::full({1}, divisor, by.options());
}

template <int width>
Quantized quantize(const Tensor& weight, const Tensor& importance) {
  const int64_t rows = weight.size(0), cols = weight.size(1), group = group_of<width>(cols);
  if (weight.numel() == 0)
    return {upcast(weight).view({rows, cols == 0 ? 0 : cols / group, group}),
            at::full({rows,
                      width == 8  ? 1
                      : cols == 0 ? 0
                                  : cols / group,
                      1},
                     0, weight.options().dtype(at::kFloat))};
  const Tensor grouped = upcast(weight).view({rows, cols / group, group}),
               largest = grouped.abs().amax(2, true).to(at::kFloat);
  if (width == 8) {
    const Tensor scales = divided(largest, 127);
    return {round_to_codes<width>(grouped, scales).codes, scales};
  }
  Quantized best;
  Tensor least;
  for (int candidate = 0; candidate <= 12; ++candidate) {
    const double divisor = 7 + 0.25 * candidate;
    const Tensor scales = divided(largest, divisor);
    const auto [exact, codes] = round_to_codes<width>(grouped, scales);
    Tensor squares = (exact - codes).square_();
    if (importance.defined()) squares.mul_(importance.to(squares.scalar_type()).view({1, cols / group, group}));
    const Tensor error = squares.sum(2, true).div_(divisor * divisor);
    if (candidate == 0) {
      best = {codes, scales};
      least = error;
      continue;
    }
    const Tensor is_better = error < least;
    best = {at::where(is_better, codes, best.codes), at::where(is_better, scales, best.scales)};
    least = at::where(is_better, error, least);
  }
  return best;
}

Tensor dequantize(const Quantized& quantized, at::ScalarType type) {
  return (quantized.codes.to(type) * quantized.scales.to(type)).flatten(1);
}

// Two codes a byte, the first in the low bits.
Tensor pack_nibbles(const Tensor& codes) {
  const Tensor all = (codes.flatten(1) + 8).to(at::kByte);
  const Tensor pairs = at::constant_pad_nd(all, {0, (8 - all.size(1) % 8) % 8}).unflatten(1, {-1, 2});
  return pairs.select(2, 0) + pairs.select(2, 1) * 16;
}

template <int width>
Quantized unpack(const fvlm_tensor* const* packed, int64_t cols) {
  Tensor codes = torch_tensor(packed[0]);
  const Tensor scales = torch_tensor(packed[1]);
  if (width == 8) return {codes.unsqueeze(1), scales.view({-1, 1, 1})};
  Tensor pairs = codes.new_empty({codes.size(0), codes.size(1), 2});
  pairs.select(2, 0).copy_(codes.bitwise_and(15));
  pairs.select(2, 1).copy_(codes.div(16, "floor"));
  codes = pairs.flatten(1).narrow(1, 0, cols).to(at::kChar) - 8;
  return {codes.view({codes.size(0), scales.size(1), group_of<width>(cols)}), scales.unsqueeze(2)};
}

template <int width>
Tensor dequantize(const fvlm_tensor* const* packed, int64_t cols, at::ScalarType type) {
  return dequantize(unpack<width>(packed, cols), wide(type));
}

// Each row by its own scale, in float32.
Tensor rounded_rows(const Tensor& x) {
  if (x.numel() == 0) return x;
  const Tensor wide = x.to(at::kFloat), scales = divided(wide.abs().amax(1, true), 127.5),
               codes = (wide / at::where(scales.eq(0), 1, scales)).round_().clamp_(-128, 127);
  return codes.to(x.scalar_type()) * scales.to(x.scalar_type());
}

} // namespace

Tensor dequantized(int bits, const fvlm_tensor* codes, const fvlm_tensor* scales, int64_t cols, at::ScalarType type) {
  AbiTensor matrices[] = {AbiTensor(torch_tensor(codes).flatten(0, 1)), AbiTensor(torch_tensor(scales).flatten(0, 1))};
  const fvlm_tensor* const packed[] = {matrices[0].get(), matrices[1].get()};
  return (bits == 8 ? dequantize<8>(packed, cols, type) : dequantize<4>(packed, cols, type))
      .unflatten(0, {codes->shape[0], codes->shape[1]});
}

template <int width, bool activations>
sdk::Support IntegerQuantizer<width, activations>::supports(const Query& query) {
  return supports_number(query.device, query.dtype);
}

template <int width, bool activations>
void IntegerQuantizer<width, activations>::requirements(const Query& query, sdk::Requirements& wanted) const {
  const int64_t cols = query.cols;
  if (width == 8) {
    wanted.save({FVLM_INT, 8, 1}, {query.rows, cols});
    wanted.save({FVLM_FLOAT, 32, 1}, {query.rows});
  } else {
    wanted.save({FVLM_UINT, 8, 1}, {query.rows, (cols + 7) / 8 * 4});
    wanted.save({FVLM_FLOAT, 32, 1}, {query.rows, cols == 0 ? 0 : cols / group_of<width>(cols)});
  }
}

template <int width, bool activations>
void IntegerQuantizer<width, activations>::pack(const fvlm_call&, const Query&, const Pack& arguments) {
  const fvlm_tensor* importance = importance_of(arguments);
  const auto [codes, scales] =
      quantize<width>(torch_tensor(arguments.weight), importance ? torch_tensor(importance) : Tensor());
  const Tensor packed = torch_tensor(arguments.packed[1]);
  store(torch_tensor(arguments.packed[0]), width == 8 ? codes.flatten(1) : pack_nibbles(codes));
  store(packed, scales.reshape(packed.sizes()));
}

template <int width, bool activations>
void IntegerQuantizer<width, activations>::unpack(const fvlm_call&, const Query& query, const Unpack& arguments) {
  const Tensor weight = torch_tensor(arguments.weight);
  store(weight, dequantize<width>(arguments.packed, query.cols, weight.scalar_type()));
}

template <int width, bool activations>
void IntegerQuantizer<width, activations>::linear(const fvlm_call&, const Query& query, const Linear& arguments) {
  const uint32_t options = options_of(query);
  Tensor x = upcast(arguments.x);
  if (options & FVLM_QUANTIZED_NORM)
    x = x * (x.square().mean(1, true) + query.epsilon).rsqrt() * upcast(arguments.norm_weight);
  if (activations) x = rounded_rows(x);
  Tensor y = at::mm(x, dequantize<width>(arguments.packed, query.cols, x.scalar_type()).t());
  if (arguments.bias) y += upcast(arguments.bias);
  if (options & FVLM_QUANTIZED_SWIGLU) {
    const Tensor gate = y.narrow(1, 0, query.rows / 2);
    y = gate * gate.sigmoid() * y.narrow(1, query.rows / 2, query.rows / 2);
  }
  if (options & FVLM_QUANTIZED_RESIDUAL) y += upcast(arguments.residual);
  store(torch_tensor(arguments.y), y);
}

template <int width, bool activations>
void IntegerQuantizer<width, activations>::linear_gradient(const fvlm_call&, const Query& query,
                                                           const LinearGradient& arguments) {
  const Tensor d_y = upcast(arguments.d_y);
  store(torch_tensor(arguments.d_x), at::mm(d_y, dequantize<width>(arguments.packed, query.cols, d_y.scalar_type())));
}

template <int width, bool activations>
void IntegerQuantizer<width, activations>::fake_quantize_forward(const fvlm_call&, const Query&,
                                                                 const FakeForward& arguments) {
  const Tensor weight = torch_tensor(arguments.weight);
  store(torch_tensor(arguments.out), dequantize(quantize<width>(weight, {}), wide(weight.scalar_type())));
}

template <int width, bool activations>
void IntegerQuantizer<width, activations>::fake_quantize_backward(const fvlm_call&, const Query&,
                                                                  const FakeBackward& arguments) {
  const Tensor d_out = torch_tensor(arguments.d_out), d_weight = torch_tensor(arguments.d_weight);
  if (width == 8 || d_out.numel() == 0) return store(d_weight, d_out); // int8 clips nothing
  const Tensor weight = torch_tensor(arguments.weight);
  const auto quantized = quantize<width>(weight, {});
  const auto [exact, codes] = round_to_codes<width>(upcast(weight).view(quantized.codes.sizes()), quantized.scales);
  store(d_weight, at::where(exact.round().eq(codes).flatten(1), d_out, 0));
}

template struct IntegerQuantizer<8>;
template struct IntegerQuantizer<4>;
template struct IntegerQuantizer<8, true>;

} // namespace fvlm::ops::reference
