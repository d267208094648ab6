// Operations that few models have, most of them elementwise. They are ATen's and need no plugin.
#pragma once
#include "ops/tape.h"

namespace fvlm::ops {

// x in float32, or in float64 where it is that.
at::Tensor widened(const at::Tensor& x);

// x + residual. compensation: see Operations::rmsnorm.
Value add(Tape& tape, const Value& x, const Value& residual, at::Tensor* compensation = nullptr);

// x * factor, a tensor of one number without a gradient. compensation: of x, and then of the result, as of add().
Value scale_by(Tape& tape, const Value& x, const at::Tensor& factor, at::Tensor* compensation = nullptr);

// x within bounds, tensors of one number without a gradient. x has one where it is within them.
Value clamp(Tape& tape, const Value& x, const at::Tensor& least, const at::Tensor& most);

// x times a parameter [features of x, outputs].
Value matmul(Tape& tape, const Value& x, const Weight& weight);

// relu(x)^2
Value relu_squared(Tape& tape, const Value& x);

// The leading columns of each row times the row's factor [rows, 1], in place: x must not be read any more.
Value scale_columns(Tape& tape, const Value& x, int64_t columns, const at::Tensor& factors);

// cap * tanh(x / cap), computed and returned in float32, or in float64 where x is.
Value softcap(Tape& tape, const Value& x, double cap);

} // namespace fvlm::ops
