#include "ops/measure.h"

#include "base/error.h"
#include "ops/attention.h"
#include "ops/kernels.h"
#include "ops/loss.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/full.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <c10/util/Exception.h>

#include <chrono>
#include <cmath>

namespace fvlm::ops {
namespace {

void synchronize(at::Device device) {
  if (device.is_cpu()) return;
  const c10::impl::VirtualGuardImpl guard(device.type());
  guard.getStream(device).synchronize();
}

double seconds_of(const std::function<void()>& work, int calls, at::Device device) {
  synchronize(device);
  const auto begin = std::chrono::steady_clock::now();
  for (int call = 0; call < calls; ++call) work();
  synchronize(device);
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count() / calls;
}

// Other work only ever slows a call down, so the fastest counts. Short calls are timed several at once: one alone would
// show the wait for the device.
double fastest(const std::function<void()>& work, at::Device device) {
  try {
    const double first = seconds_of(work, 1, device); // also warms up
    const int calls = first < 1e-3 ? 8 : 1, rounds = first < 0.1 ? 4 : 2;
    double best = first;
    for (int round = 0; round < rounds; ++round) best = std::min(best, seconds_of(work, calls, device));
    return best;
  } catch (const c10::Error& error) {
    throw Error(ErrorKind::device, error.what_without_backtrace()); // without the addresses of LibTorch's text
  }
}

// Tensors of a device; the values are ordinary numbers that take nothing from any random state.
struct Maker {
  at::Device device;

  at::Tensor values(at::IntArrayRef shape, fvlm_dtype dtype) const {
    int64_t count = 1;
    for (const int64_t size : shape) count *= size;
    const auto options = at::TensorOptions().device(device);
    return at::arange(count, options.dtype(at::kInt))
        .remainder_(31)
        .to(scalar_type(dtype))
        .sub_(15)
        .mul_(0.05)
        .view(shape);
  }
  at::Tensor counted(int64_t count, int64_t below, at::ScalarType type) const {
    return at::arange(count, at::TensorOptions().dtype(type).device(device)).remainder_(below);
  }
};

// Rows of each segment: between the shortest and the longest that fill the buffer.
int64_t typical_length(int64_t rows, int64_t segments, int64_t longest) {
  const double even = static_cast<double>(rows) / static_cast<double>(std::max<int64_t>(segments, 1));
  const auto mean = std::llround(std::sqrt(even * static_cast<double>(longest)));
  return std::clamp<int64_t>(mean, 1, std::max<int64_t>(longest, 1));
}

Packing packing_of(const fvlm_attention_query& query, const Maker& make) {
  const int64_t of_q = typical_length(query.tokens_q, query.segments, query.max_seqlen_q),
                of_kv = typical_length(query.tokens_kv, query.segments, query.max_seqlen_kv);
  const int64_t used = std::min({query.segments, query.tokens_q / of_q, query.tokens_kv / of_kv});
  const auto starts = [&](int64_t length) {
    return at::arange(query.segments + 1, at::kInt).clamp_max_(used).mul_(length).to(make.device);
  };
  Packing packing{starts(of_q), starts(of_kv), {}, {}};
  if (query.rotary_dim > 0) {
    packing.positions_q = make.counted(query.tokens_q, of_q, at::kInt);
    packing.positions_kv = make.counted(query.tokens_kv, of_kv, at::kInt);
  }
  return packing;
}

// The rows that all but rope work on, the parameters beside them, and what each op calls.
std::function<void()> calls_of(const KernelsBackend& backend, const fvlm_kernels_query& query, const Maker& make) {
  const bool backward = query.options & FVLM_WITH_BACKWARD;
  const auto rows = [&](int64_t width) { return make.values({query.rows, width}, query.dtype); };
  const auto vector = [&](bool wanted) { return wanted ? make.values({query.width}, query.dtype) : at::Tensor(); };
  const at::Tensor x = rows(query.width), d_y = rows(query.width);
  switch (query.op) {
  case FVLM_OP_RMSNORM:
  case FVLM_OP_LAYERNORM: {
    const bool has_bias = query.op == FVLM_OP_LAYERNORM, has_residual = query.options & FVLM_WITH_RESIDUAL;
    return [op = Norm(backend, query), x, d_y, weight = vector(true), bias = vector(has_bias), backward, has_bias,
            residual = has_residual ? x : at::Tensor()] {
      const Norm::Output output = op.forward(x, residual, weight, bias);
      if (backward)
        op.backward(residual.defined() ? output.sum : x, weight, output, d_y, {}, {.weight = true, .bias = has_bias});
    };
  }
  case FVLM_OP_ROPE:
    return [op = Rope(backend, query), x = x.view({query.rows, query.heads, query.head_dim}), backward,
            positions = make.counted(query.rows, query.rows, at::kInt)] {
      op.apply(x, positions, false);
      if (backward) op.apply(x, positions, true);
    };
  case FVLM_OP_SWIGLU:
    return [op = SwiGlu(backend, query), x, d_y, backward] {
      op.forward(x, x);
      if (backward) op.backward(x, x, d_y);
    };
  case FVLM_OP_BIAS_GELU:
    return [op = BiasGelu(backend, query), x, d_y, bias = vector(query.options & FVLM_WITH_BIAS), backward] {
      op.forward(x, bias);
      if (backward) op.backward(x, bias, d_y, bias.defined());
    };
  case FVLM_OP_LAYERSCALE_RESIDUAL:
    return [op = LayerScale(backend, query), x, d_y, scale = vector(true), backward] {
      op.forward(x, scale, x);
      if (backward) op.backward(x, scale, d_y, true);
    };
  case FVLM_OP_LINEAR:
    return
        [op = Linear(backend, query), x = rows(query.inner), d_y, backward,
         weight = make.values({query.width, query.inner}, query.dtype), bias = vector(query.options & FVLM_WITH_BIAS)] {
          op.forward(x, weight, bias);
          if (!backward) return;
          op.input_gradient(d_y, weight);
          op.weight_gradient(d_y, x, bias.defined());
        };
  default:
    throw Error(ErrorKind::internal, "nothing is known to measure of " + operation_name(query.op));
  }
}

} // namespace

double measure(const Candidate<fvlm_attention_v1>& candidate, const fvlm_attention_query& query, at::Device device) {
  const Attention op(Backend<fvlm_attention_v1>(candidate, device), query);
  const Maker make{device};
  const at::Tensor q = make.values({query.tokens_q, query.heads_q, query.head_dim}, query.dtype),
                   kv = make.values({query.tokens_kv, query.heads_kv, query.head_dim}, query.dtype);
  const Packing packing = packing_of(query, make);
  const auto work = [&] {
    const Attention::Output output = op.forward(q, kv, kv, packing);
    if (query.needs_backward) op.backward(q, kv, kv, packing, output, q);
  };
  return fastest(work, device);
}

double measure(const Candidate<fvlm_loss_v1>& candidate, const fvlm_loss_query& query, at::Device device) {
  const Loss op(Backend<fvlm_loss_v1>(candidate, device), query);
  const Maker make{device};
  const Loss::Inputs inputs{make.values({query.tokens, query.width}, query.dtype),
                            make.values({query.vocab, query.width}, query.dtype),
                            make.counted(query.tokens, query.vocab, at::kLong)};
  const auto type = scalar_type(query.dtype) == at::kDouble ? at::kDouble : at::kFloat;
  const at::Tensor d_losses = at::full({query.tokens}, 1.0 / static_cast<double>(std::max<int64_t>(query.tokens, 1)),
                                       at::TensorOptions().dtype(type).device(device));
  const bool gradients = query.needs_d_hidden || query.needs_d_weight;
  const auto work = [&] {
    if (gradients)
      op.fused(inputs, d_losses);
    else
      op.forward(inputs);
  };
  return fastest(work, device);
}

double measure(const Candidate<fvlm_kernels_v1>& candidate, const fvlm_kernels_query& query, at::Device device) {
  return fastest(calls_of(KernelsBackend(candidate, device), query, {device}), device);
}

} // namespace fvlm::ops
