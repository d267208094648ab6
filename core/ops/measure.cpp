#include "ops/measure.h"

#include "base/clock.h"
#include "base/error.h"
#include "ops/attention.h"
#include "ops/kernels.h"
#include "ops/loss.h"
#include "ops/optimizer.h"

#include <fvlm/fvlm.hpp>

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/zeros.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <c10/util/Exception.h>

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
  const double begin = steady_seconds();
  for (int call = 0; call < calls; ++call) work();
  synchronize(device);
  return (steady_seconds() - begin) / calls;
}

// Creates tensors of unremarkable numbers without drawing from any random state.
struct TensorFactory {
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
  at::Tensor cyclic_range(int64_t count, int64_t below, at::ScalarType type) const {
    return at::arange(count, at::TensorOptions().dtype(type).device(device)).remainder_(below);
  }
};

// Rows of each segment: the geometric mean of the longest and of an equal share of the buffer.
int64_t typical_length(int64_t rows, int64_t segments, int64_t longest) {
  const double equal_share = static_cast<double>(rows) / static_cast<double>(std::max<int64_t>(segments, 1));
  const auto mean = std::llround(std::sqrt(equal_share * static_cast<double>(longest)));
  return std::clamp<int64_t>(mean, 1, std::max<int64_t>(longest, 1));
}

Packing packing_of(const fvlm_attention_query& query, const TensorFactory& make) {
  const TypicalPacking filled = typical_packing(query);
  const auto starts = [&](int64_t length) {
    return at::arange(query.segments + 1, at::kInt).clamp_max_(filled.segments).mul_(length).to(make.device);
  };
  Packing packing{starts(filled.of_q), starts(filled.of_kv), {}, {}};
  if (query.rotary_dim > 0) {
    packing.positions_q = make.cyclic_range(query.tokens_q, filled.of_q, at::kInt);
    packing.positions_kv = make.cyclic_range(query.tokens_kv, filled.of_kv, at::kInt);
  }
  return packing;
}

// Calls whose `both` is forward, then backward with what forward saved.
Calls forward_then_backward(std::function<void()> forward, std::function<void()> backward) {
  Calls calls{std::move(forward), std::move(backward), {}};
  calls.both = calls.forward;
  if (calls.backward)
    calls.both = [first = calls.forward, then = calls.backward] {
      first();
      then();
    };
  return calls;
}

template <class Table>
Backend<Table> backend_of(const Candidate<Table>& candidate, at::Device device, uint32_t flags) {
  Backend<Table> backend(candidate, device);
  backend.state().flags = flags;
  return backend;
}

} // namespace

TypicalPacking typical_packing(const fvlm_attention_query& query) {
  const int64_t of_q = typical_length(query.tokens_q, query.segments, query.max_seqlen_q),
                of_kv = typical_length(query.tokens_kv, query.segments, query.max_seqlen_kv);
  return {std::min({query.segments, query.tokens_q / of_q, query.tokens_kv / of_kv}), of_q, of_kv};
}

int64_t typical_keys(const fvlm_paged_attention_query& query) {
  return query.sequences > 0 ? std::min((query.max_pages + 1) / 2, query.pages) * query.page_rows : 0;
}

// Other work can only slow a call down, so the fastest one counts. Short calls are timed several at once, because a
// single one would mostly measure the synchronization.
double fastest(const std::function<void()>& work, at::Device device) {
  try {
    const double first = seconds_of(work, 1, device); // also warms up
    const int calls = first < 1e-3 ? 8 : 1, rounds = first < 0.1 ? 4 : 2;
    double best = first;
    for (int round = 0; round < rounds; ++round) best = std::min(best, seconds_of(work, calls, device));
    return best;
  } catch (const c10::Error& error) {
    throw Error(ErrorKind::device, error.what_without_backtrace());
  }
}

Calls make_calls(const Candidate<fvlm_attention_v1>& candidate, const fvlm_attention_query& query, at::Device device,
                 uint32_t flags) {
  const TensorFactory make{device};
  const Attention op(backend_of(candidate, device, flags), query);
  const at::Tensor q = make.values({query.tokens_q, query.heads_q, query.head_dim}, query.dtype),
                   kv = make.values({query.tokens_kv, query.heads_kv, query.head_dim}, query.dtype);
  const Packing packing = packing_of(query, make);
  const auto output = std::make_shared<Attention::Output>();
  const auto forward = [op, q, kv, packing, output] { *output = op.forward(q, kv, kv, packing); };
  if (!query.needs_backward) return forward_then_backward(forward, {});
  return forward_then_backward(forward, [op, q, kv, packing, output] { op.backward(q, kv, kv, packing, *output, q); });
}

// Rows of all sequences in turn.
Calls make_calls(const Candidate<PagedAttentionTable>& candidate, const fvlm_paged_attention_query& query,
                 at::Device device, uint32_t flags) {
  const TensorFactory make{device};
  const PagedAttention op(backend_of(candidate, device, flags), query);
  const int64_t sequences = std::max<int64_t>(query.sequences, 1), pages = std::max<int64_t>(query.pages, 1);
  const at::Tensor q = make.values({query.rows, query.heads_q, query.head_dim}, query.dtype),
                   pool = make.values({query.pages, query.page_rows, query.heads_kv, query.head_dim}, query.dtype);
  const PagedKeys keys{
      pool, pool,
      make.cyclic_range(query.sequences * query.max_pages, pages, at::kInt).view({query.sequences, query.max_pages}),
      make.cyclic_range(query.rows, sequences, at::kInt),
      at::full({query.rows}, typical_keys(query), at::TensorOptions().dtype(at::kInt).device(device))};
  return forward_then_backward([op, q, keys] { op.forward(q, keys); }, {});
}

Calls make_calls(const Candidate<fvlm_loss_v1>& candidate, const fvlm_loss_query& query, at::Device device,
                 uint32_t flags) {
  const TensorFactory make{device};
  const Loss op(backend_of(candidate, device, flags), query);
  const Loss::Inputs inputs{make.values({query.tokens, query.width}, query.dtype),
                            make.values({query.vocab, query.width}, query.dtype),
                            make.cyclic_range(query.tokens, query.vocab, at::kLong)};
  const auto type = scalar_type(query.dtype) == at::kDouble ? at::kDouble : at::kFloat;
  const at::Tensor d_losses = at::full({query.tokens}, 1.0 / static_cast<double>(std::max<int64_t>(query.tokens, 1)),
                                       at::TensorOptions().dtype(type).device(device));
  const auto output = std::make_shared<Loss::Output>();
  const auto forward = [op, inputs, output] { *output = op.forward(inputs); };
  if (!query.needs_d_hidden && !query.needs_d_weight) return forward_then_backward(forward, {});
  Calls calls =
      forward_then_backward(forward, [op, inputs, output, d_losses] { op.backward(inputs, *output, d_losses); });
  calls.both = [op, inputs, d_losses] { op.fused(inputs, d_losses); };
  return calls;
}

// With the backward if the query asks for it.
Calls kernel_calls(const fvlm_kernels_query& query, std::function<void()> forward, std::function<void()> backward) {
  if (!(query.options & FVLM_WITH_BACKWARD)) backward = {};
  return forward_then_backward(std::move(forward), std::move(backward));
}

// Of the operations that carry a state, whose segments are equally long here.
Calls recurrence_calls(const KernelsBackend& backend, const fvlm_kernels_query& query, const TensorFactory& make) {
  const auto values = [&](std::initializer_list<int64_t> sizes) { return make.values(sizes, query.dtype); };
  const bool has_states = query.options & FVLM_WITH_STATES, convolves = query.op == FVLM_OP_SHORT_CONVOLUTION;
  const at::Tensor numbers = make.cyclic_range(query.segments + 1, query.segments + 1, at::kInt);
  const at::Tensor slots = numbers.narrow(0, 0, query.segments);
  SegmentStates segments{(numbers.to(at::kLong) * query.rows).div(query.segments, "floor").to(at::kInt), {}, {}, {}};
  if (has_states) {
    segments.slots = slots, segments.starts = slots.eq(0).to(at::kInt);
    segments.states = convolves ? values({query.segments, query.taps - 1, query.width})
                                : make.values({query.segments, query.heads, query.key_dim, query.head_dim},
                                              query.dtype.bits == 64 ? query.dtype : fvlm_dtype{FVLM_FLOAT, 32, 1});
  }
  const at::Tensor d_y = values({query.rows, query.width}), bounds = segments.cu_seqlens;
  if (convolves) {
    const ShortConvolution op(backend, query);
    const at::Tensor x = values({query.rows, query.width}), weight = values({query.width, query.taps}),
                     bias = query.options & FVLM_WITH_BIAS ? values({query.width}) : at::Tensor();
    return kernel_calls(
        query, [=] { op.forward(x, weight, bias, segments); },
        [=] { op.backward(x, weight, bias, bounds, d_y, true, bias.defined()); });
  }
  const GatedDeltaRule op(backend, query);
  const GatedDeltaRule::Operands of{values({query.rows, 2 * int64_t{query.key_heads} * query.key_dim + query.width}),
                                    values({query.rows, 2 * int64_t{query.heads}}), values({query.heads}),
                                    values({query.heads})};
  const auto output = std::make_shared<GatedDeltaRule::Output>();
  return kernel_calls(
      query, [=] { *output = op.forward(of, segments); }, [=] { op.backward(of, bounds, *output, d_y, true, true); });
}

Calls experts_calls(const KernelsBackend& backend, const fvlm_kernels_query& query, const TensorFactory& make,
                    const at::Tensor& x) {
  const FewRowsExperts op(backend, query);
  const auto values = [&](std::initializer_list<int64_t> sizes) { return make.values(sizes, query.dtype); };
  // Rows choose different experts, as if they were drawn.
  constexpr int64_t step = 7919, below = 1009;
  const int64_t count = query.rows * query.experts;
  const at::Tensor logits = make.cyclic_range(count, count, at::kLong).mul_(step).remainder_(below).to(x.scalar_type());
  const int64_t bits = query.options & FVLM_INT4_WEIGHTS ? 4 : query.options & FVLM_INT8_WEIGHTS ? 8 : 16;
  const auto matrices = [&](int64_t of_expert, int64_t cols) -> std::array<at::Tensor, 2> { // and their scales
    if (bits == 16) return {values({query.experts, of_expert, cols}), at::Tensor()};
    const int64_t bytes = bits == 8 ? cols : (cols + 7) / 8 * 4, groups = bits == 8 ? 1 : cols / sdk::int4_group(cols);
    return {make.cyclic_range(query.experts * of_expert * bytes, 127, bits == 8 ? at::kChar : at::kByte)
                .view({query.experts, of_expert, bytes}),
            make.values({query.experts, of_expert, groups}, {FVLM_FLOAT, 32, 1}).mul_(1e-2)};
  };
  const auto gate_up = matrices(2 * query.inner, query.width), down = matrices(query.width, query.inner);
  const FewRowsExperts::Operands of{x,
                                    logits.mul_(1e-2).view({query.rows, query.experts}),
                                    query.options & FVLM_WITH_BIAS ? values({query.experts}) : at::Tensor(),
                                    gate_up[0],
                                    down[0],
                                    gate_up[1],
                                    down[1]};
  return kernel_calls(query, [=] { op.forward(of); }, {});
}

Calls fold_calls(const KernelsBackend& backend, const fvlm_kernels_query& query, const TensorFactory& make,
                 const at::Tensor& x) {
  const FoldRowScale op(backend, query);
  const auto type = scalar_type(query.dtype) == at::kDouble ? at::kDouble : at::kFloat;
  const FoldRowScale::Parameters values{x, {make.values({query.rows, query.width, query.inner}, query.dtype), x}};
  const auto like = [&](const at::Tensor& t, at::ScalarType dtype) { return at::ones_like(t, dtype); };
  const FoldRowScale::Linears d_scaled{like(values.linears.weight, type), like(x, type)};
  const auto own = scalar_type(query.gradient_dtype);
  const FoldRowScale::Parameters into{like(x, own), {like(values.linears.weight, own), like(x, own)}};
  return kernel_calls(
      query, [=] { op.forward(values); }, [=] { op.backward(values, d_scaled, into, false); });
}

Calls make_calls(const Candidate<fvlm_kernels_v1>& candidate, const fvlm_kernels_query& query, at::Device device,
                 uint32_t flags) {
  const TensorFactory make{device};
  const KernelsBackend backend = backend_of(candidate, device, flags);
  const auto rows = [&](int64_t width) { return make.values({query.rows, width}, query.dtype); };
  const auto vector = [&](bool is_present) {
    return is_present ? make.values({query.width}, query.dtype) : at::Tensor();
  };
  const auto calls = std::bind_front(kernel_calls, query);
  const at::Tensor x = rows(query.width), d_y = rows(query.width);
  switch (query.op) {
  case FVLM_OP_RMSNORM:
  case FVLM_OP_LAYERNORM: {
    const bool has_bias = query.op == FVLM_OP_LAYERNORM;
    const Norm op(backend, query);
    const at::Tensor weight = vector(true), bias = vector(has_bias),
                     residual = query.options & FVLM_WITH_RESIDUAL ? x : at::Tensor();
    const auto output = std::make_shared<Norm::Output>();
    return calls([=] { *output = op.forward(x, residual, weight, bias); },
                 [=] {
                   op.backward(residual.defined() ? output->sum : x, weight, *output, d_y, {},
                               {.weight = true, .bias = has_bias});
                 });
  }
  case FVLM_OP_ROPE: {
    const Rope op(backend, query);
    const at::Tensor heads = x.view({query.rows, query.heads, query.head_dim}),
                     positions = make.cyclic_range(query.rows, query.rows, at::kInt),
                     frequencies = query.options & FVLM_WITH_FREQUENCIES
                                       ? at::ones({query.rotary_dim / 2}, x.options().dtype(at::kDouble))
                                       : at::Tensor();
    return calls([=] { op.apply(heads, positions, false, {}, frequencies); },
                 [=] { op.apply(heads, positions, true, {}, frequencies); });
  }
  case FVLM_OP_SWIGLU: {
    const SwiGlu op(backend, query);
    return calls([=] { op.forward(x, x); }, [=] { op.backward(x, x, d_y); });
  }
  case FVLM_OP_BIAS_GELU: {
    const BiasGelu op(backend, query);
    const at::Tensor bias = vector(query.options & FVLM_WITH_BIAS);
    return calls([=] { op.forward(x, bias); }, [=] { op.backward(x, bias, d_y, bias.defined()); });
  }
  case FVLM_OP_LAYERSCALE_RESIDUAL: {
    const LayerScale op(backend, query);
    const at::Tensor scale = vector(true);
    return calls([=] { op.forward(x, scale, x); }, [=] { op.backward(x, scale, d_y, true); });
  }
  case FVLM_OP_LINEAR: {
    const Linear op(backend, query);
    constexpr fvlm_dtype bfloat16{FVLM_BFLOAT, 16, 1};
    const at::Tensor input = rows(query.inner),
                     weight = make.values({query.width, query.inner},
                                          query.options & FVLM_BFLOAT16_WEIGHT ? bfloat16 : query.dtype),
                     bias = vector(query.options & FVLM_WITH_BIAS),
                     residual = query.options & FVLM_WITH_RESIDUAL ? x : at::Tensor();
    return calls([=] { op.forward(input, weight, bias, {}, residual); },
                 [=] {
                   op.input_gradient(d_y, weight);
                   op.weight_gradient(d_y, input, bias.defined());
                 });
  }
  case FVLM_OP_FOLD_ROW_SCALE:
    return fold_calls(backend, query, make, x);
  case FVLM_OP_SHORT_CONVOLUTION:
  case FVLM_OP_DELTA_RULE:
    return recurrence_calls(backend, query, make);
  case FVLM_OP_EXPERTS:
    return experts_calls(backend, query, make, x);
  default:
    throw Error(ErrorKind::internal, "no benchmark is implemented for " + operation_name(query.op));
  }
}

Calls make_calls(const Candidate<fvlm_optimizer_v1>& candidate, const fvlm_optimizer_query& query, at::Device device,
                 uint32_t flags) {
  const TensorFactory make{device};
  const Optimizer op(backend_of(candidate, device, flags), query,
                     std::vector(query.segments, query.segments + query.segment_count));
  const auto zeros = [&](int64_t count, at::ScalarType type) {
    return at::zeros({count}, at::TensorOptions().dtype(type).device(device));
  };
  Optimizer::Arenas arenas{make.values({query.elements}, abi_dtype(at::kFloat)),
                           make.values({query.elements}, query.gradient_dtype),
                           {},
                           {}};
  if (scalar_type(query.parameter_dtype) != at::kFloat)
    arenas.parameter = zeros(query.elements, scalar_type(query.parameter_dtype));
  for (const auto& state : op.make_states()) arenas.states.push_back(state.values);
  const Optimizer::Control control{op.default_hyperparameters().to(device), zeros(1, at::kLong).fill_(1),
                                   zeros(1, at::kFloat).fill_(1), zeros(1, at::kInt)};
  return forward_then_backward([=] { op.step(arenas, control); }, {});
}

} // namespace fvlm::ops
