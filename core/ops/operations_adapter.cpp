// Linears whose frozen weight has low-rank adapters: in one product with it where they lie in one matrix
// (JoinedWeight), else by two skinny products beside it, added in place.
#include "ops/adapter.h"
#include "ops/operations.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/tensor.h>

#include <algorithm>
#include <memory>

namespace fvlm::ops {
namespace {

at::ScalarType wide(const at::Tensor& tensor) {
  return tensor.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
}

// x y in the type of `like`, without rounding in between where the device can.
at::Tensor product(const at::Tensor& x, const at::Tensor& y, at::ScalarType type) {
  if (x.scalar_type() == type) return at::mm(x, y);
  if (x.is_cuda() && type == at::kFloat) return at::mm(x, y, type);
  return x.is_cpu() ? at::mm(x.to(type), y.to(type)) : at::mm(x, y).to(type);
}

// A step of a 32-bit mixing function (splitmix-like) in int64, whose products of numbers below 2^32 and 2^31 fit.
at::Tensor mixed(at::Tensor x) {
  constexpr int64_t mask = 0xffffffff;
  x = (x ^ (x.bitwise_right_shift(16))) * 0x45d9f3b & mask;
  x = (x ^ (x.bitwise_right_shift(16))) * 0x45d9f3b & mask;
  return x ^ (x.bitwise_right_shift(16));
}

} // namespace

void RowAdapters::select(const at::Tensor& of_rows) {
  of_rows_ = of_rows;
  masks_.clear();
}

const at::Tensor& RowAdapters::mask(const std::vector<int32_t>& owners, at::ScalarType dtype) {
  at::Tensor& mask = masks_[owners];
  if (mask.defined()) return mask;
  at::Tensor& columns = owners_[owners];
  if (!columns.defined()) columns = at::tensor(owners, at::kInt).to(of_rows_.device());
  return mask = of_rows_.unsqueeze(1).eq(columns.unsqueeze(0)).to(dtype);
}

at::Tensor dropout_mask(const at::Tensor& x, double p, const at::Tensor& seed, int64_t id) {
  const auto on = x.options().dtype(at::kLong);
  const at::Tensor rows = mixed((mixed((seed + id) & 0xffffffff) + at::arange(x.size(0), on)) & 0xffffffff);
  const at::Tensor numbers = mixed(rows.unsqueeze(1) ^ mixed(at::arange(x.size(1), on)).unsqueeze(0));
  return (numbers >= static_cast<int64_t>(p * 4294967296.0)).to(x.scalar_type()).mul_(1 / (1 - p));
}

// The adapters of a weight's parts. Their As lie next to each other, and one product reads them all.
struct Operations::AdaptedWeight {
  struct Part {
    const Adapter* adapter;
    int64_t row, rows; // of the weight
    int64_t rank_begin, rank;
    Weight b, magnitude;
  };
  std::vector<Part> parts;
  Weight a;

  explicit AdaptedWeight(const Weight& weight) {
    std::vector<Parameter*> all_a;
    int64_t row = 0, rank = 0;
    for (Parameter* part : weight.parts()) {
      const int64_t rows = part->value.size(0);
      if (const Adapter* adapter = part->adapter.get()) {
        const int64_t own = adapter->a->value.size(0);
        parts.push_back({adapter, row, rows, rank, own, Weight(*adapter->b),
                         adapter->magnitude ? Weight(*adapter->magnitude) : Weight()});
        all_a.push_back(adapter->a);
        rank += own;
      }
      row += rows;
    }
    a = Weight(std::move(all_a));
  }

  bool requires_grad() const { return a.requires_grad() || parts.front().b.requires_grad(); }
  bool is_dora() const { return first().magnitude != nullptr; }
  const Adapter& first() const { return *parts.front().adapter; }
  std::vector<int32_t> owners() const { // of all columns of x A^T
    std::vector<int32_t> all;
    for (const Part& part : parts) all.insert(all.end(), part.adapter->owners.begin(), part.adapter->owners.end());
    return all;
  }
  // x A^T with the columns of each part times its scale.
  at::Tensor scaled(const at::Tensor& low) const {
    if (std::ranges::all_of(parts, [&](const Part& part) { return part.adapter->scale == first().scale; }))
      return low * first().scale;
    at::Tensor scaled = at::empty(low.sizes(), low.options());
    for (const Part& part : parts) {
      at::Tensor own = scaled.narrow(1, part.rank_begin, part.rank);
      at::mul_out(own, low.narrow(1, part.rank_begin, part.rank), at::scalar_tensor(part.adapter->scale, at::kDouble));
    }
    return scaled;
  }
};

// The frozen part of an adapted linear.
at::Tensor Operations::frozen_linear(const at::Tensor& x, const Layer& layer, const at::Tensor& residual,
                                     bool records) {
  if (layer.weight.is_quantized()) {
    const at::Tensor y = quantizer_for(layer.weight, x.size(0)).linear(layer.weight.packed(), x, layer.bias.value());
    return residual.defined() ? y + residual : y;
  }
  const uint32_t options = option_if(FVLM_WITH_BACKWARD, records) | option_if(FVLM_WITH_RESIDUAL, residual.defined());
  return linear_for(x, layer, options, options_.gradient_dtype)
      .forward(x, layer.weight.value(), layer.bias.value(), {}, residual)
      .y;
}

at::Tensor Operations::frozen_input_gradient(const at::Tensor& d_y, const Weight& weight) {
  if (weight.is_quantized())
    return quantizer_for(weight, d_y.size(0)).linear_gradient(weight.packed(), d_y.contiguous());
  const uint32_t options = FVLM_WITH_BACKWARD | option_if(FVLM_STRIDED_WEIGHT, weight.is_strided());
  auto query = kernels_query(FVLM_OP_LINEAR, options, d_y.size(0), weight.value().size(0));
  query.inner = weight.value().size(1);
  query.gradient_dtype = abi_dtype(options_.gradient_dtype);
  return kernel<Linear>(query).input_gradient(d_y.contiguous(), weight.value());
}

// m / n for DoRA's rows, ones for others: [out], float32 or wider. The squared norm of a row of W + s B A is
// |w|^2 + 2 s b (A w) + s^2 b (A A^T) b: products of rank columns, and no copy of W.
at::Tensor Operations::dora_factors(const Weight& weight, const AdaptedWeight& adapted,
                                    std::vector<at::Tensor>& norms) {
  const at::Tensor& all_a = adapted.a.value();
  const auto type = wide(all_a);
  const at::Tensor a_w = frozen_linear(all_a, {weight, {}}, {}, false); // [ranks, out]
  const at::Tensor factors = at::ones({weight.value().size(0)}, all_a.options().dtype(type));
  for (const auto& part : adapted.parts) {
    std::call_once(part.adapter->base_square_once,
                   [&] { part.adapter->base_square = squared_norms(weight).narrow(0, part.row, part.rows); });
    const at::Tensor a = all_a.narrow(0, part.rank_begin, part.rank).to(type), b = part.b.value().to(type);
    const at::Tensor cross = a_w.narrow(0, part.rank_begin, part.rank).narrow(1, part.row, part.rows).t().to(type);
    const double s = part.adapter->scale;
    const at::Tensor square =
        part.adapter->base_square + (b * cross).sum(1) * (2 * s) + (at::mm(b, at::mm(a, a.t())) * b).sum(1) * (s * s);
    norms.push_back(square.clamp_min(1e-30).sqrt());
    factors.narrow(0, part.row, part.rows).copy_(part.magnitude.value().to(type) / norms.back());
  }
  return factors;
}

at::Tensor Operations::squared_norms(const Weight& weight) {
  const at::Tensor values = numbers(weight);
  return at::linalg_vector_norm(values, 2, at::IntArrayRef{1}, false, wide(values)).square();
}

// What the backward pass of an adapted linear reads.
struct Operations::AdaptedPass {
  std::shared_ptr<const AdaptedWeight> adapted;
  Weight weight; // the frozen one
  const Linear* op_a;
  at::Tensor low;                // dropout(x) A^T
  at::Tensor factors, direction; // of DoRA: m / n, and what it scales
  std::vector<at::Tensor> norms; // n of each part
  bool drops;

  at::Tensor dropped(const at::Tensor& x) const { return drops ? x * mask(x) : x; }
  at::Tensor mask(const at::Tensor& x) const {
    const Adapter& first = adapted->first();
    return dropout_mask(x, first.dropout, first.dropout_seed, first.id);
  }
};

// A frozen weight W [rows, columns] and its adapters in one matrix, whose last `room` rows and columns are the
// adapters': the sum of their ranks, rounded up to eight. Each B is in the rows of its own part, 0 elsewhere.
//   W  s B
//   A  0
// So [x, x A^T] times the first rows gives y, and [d_y, s d_y B] times the first columns gives d_x: one product, in
// which the adapters cost room / columns more, where products of their own would read and write y and d_x once more.
struct JoinedWeight {
  at::Tensor all;
  int64_t rows, columns, room;

  JoinedWeight(const at::Tensor& joined, const Weight& weight)
      : all(joined), rows(weight.value().size(0)), columns(weight.value().size(1)), room(joined.size(1) - columns) {}
  at::Tensor w_and_b() const { return all.narrow(0, 0, rows); }
  at::Tensor w_and_a() const { return all.narrow(1, 0, columns); }
  at::Tensor a() const { return w_and_a().narrow(0, rows, room); }
  at::Tensor b() const { return w_and_b().narrow(1, columns, room); }
};

namespace {

// Rows of `width` columns with `room` free columns behind each.
at::Tensor with_room(int64_t rows, int64_t width, int64_t room, const at::TensorOptions& options) {
  return at::empty({rows, width + room}, options).narrow(1, 0, width);
}

// Whether the rows are of with_room(). Nothing else makes rows of a tensor that is `room` columns wider.
bool has_room(const at::Tensor& rows, int64_t room) {
  const int64_t width = rows.size(1) + room;
  return rows.stride(0) == width && rows.stride(1) == 1 && rows.storage_offset() == 0 &&
         static_cast<int64_t>(rows.storage().nbytes()) == rows.size(0) * width * rows.element_size();
}

at::Tensor with_columns_behind(const at::Tensor& rows, int64_t room) {
  return rows.as_strided({rows.size(0), rows.size(1) + room}, {rows.stride(0), 1});
}

} // namespace

at::Tensor Operations::input_memory(const Weight& weight, int64_t rows) {
  const at::Tensor joined = weight.joined();
  if (!joined.defined() || rows == 0) return {};
  const JoinedWeight of(joined, weight);
  return with_room(rows, of.columns, of.room, joined.options());
}

// What the backward pass of a joined linear reads.
struct Operations::JoinedPass {
  Weight weight; // the frozen one
  std::shared_ptr<const AdaptedWeight> adapted;
  JoinedWeight joined;
  const Linear* op_a = nullptr;
  at::Tensor low = {}; // s x A^T

  explicit JoinedPass(const Weight& frozen)
      : weight(frozen), adapted(std::make_shared<const AdaptedWeight>(frozen)), joined(frozen.joined(), frozen) {}
  at::Tensor wide(const at::Tensor& x) const { return with_columns_behind(x, joined.room); }
  at::Tensor memory(int64_t rows, const at::TensorOptions& options) const { // for y, and for its gradient
    return with_room(rows, joined.rows, joined.room, options);
  }
};

bool Operations::records_joined(Tape& tape, const JoinedPass& pass, const Value& x, const Value& residual,
                                const Weight& bias) {
  const AdaptedWeight& adapted = *pass.adapted;
  const bool records = tape.records(x, adapted, residual);
  for (const auto& part : adapted.parts) (void)tape.records(adapted.a, part.b, bias);
  return records;
}

// Writes x A^T behind x and s B behind W.
void Operations::prepare_joined(JoinedPass& pass, const at::Tensor& x, bool records) {
  const auto& [weight, adapted, joined, op_a, low] = pass;
  const int64_t ranks = adapted->a.value().size(0);
  const Layer of_a{adapted->a, {}};
  const at::Tensor behind = pass.wide(x).narrow(1, joined.columns, joined.room), written = behind.narrow(1, 0, ranks);
  pass.op_a = &linear_for(x, of_a, option_if(FVLM_WITH_BACKWARD, records), gradient_type(of_a));
  pass.op_a->forward(x, adapted->a.value(), {}, {written, {}, {}});
  behind.narrow(1, ranks, joined.room - ranks).zero_();
  for (const auto& part : adapted->parts) {
    at::Tensor b = joined.b().narrow(0, part.row, part.rows).narrow(1, part.rank_begin, part.rank);
    at::mul_out(b, part.b.value(), at::scalar_tensor(part.adapter->scale, at::kDouble));
  }
  if (records) pass.low = adapted->scaled(written);
}

const Linear& Operations::joined_forward(const JoinedPass& pass, int64_t rows, uint32_t options) {
  auto query = kernels_query(FVLM_OP_LINEAR, options, rows, pass.joined.rows);
  query.inner = pass.joined.columns + pass.joined.room;
  return fp8_or_plain(kernel<Linear>(query), pass.weight, pass.joined.room);
}

Value Operations::joined_linear(Tape& tape, const Value& x, const Layer& layer, const Value& residual) {
  JoinedPass pass(layer.weight);
  const bool records = records_joined(tape, pass, x, residual, layer.bias);
  const int64_t rows = x.data.size(0);
  prepare_joined(pass, x.data, records);
  const at::Tensor y = records ? pass.memory(rows, x.data.options()) : at::Tensor();
  const uint32_t options =
      option_if(FVLM_WITH_BIAS, layer.bias.defined()) | option_if(FVLM_WITH_RESIDUAL, residual.defined());
  Value out(joined_forward(pass, rows, options)
                .forward(pass.wide(x.data), pass.joined.w_and_b(), layer.bias.value(), {y, {}, {}}, residual.data)
                .y,
            records);
  if (records) push_joined_gradients(tape, std::move(pass), x, out, layer.bias, residual, nullptr);
  return out;
}

// `pass_on`: computes what the input's gradient leads to, in place of adding it to that of x. It returns x if it
// computes that again.
void Operations::push_joined_gradients(Tape& tape, JoinedPass pass, const Value& x, const Value& out,
                                       const Weight& bias, const Value& residual, JoinedInputGradient pass_on) {
  out.gradient->set_destination(
      [memory = pass, rows = x.data.size(0), options = x.data.options()] { return memory.memory(rows, options); },
      true);
  join_side_stream_after_backward(tape);
  // A's gradient would be later than its mark.
  const bool waits_for_data = !pass_on && x.gradient && x.gradient->offers_data() && !tape.has_marks(),
             keeps_input = pass.adapted->a.requires_grad() && !(pass_on && tape.recomputes_cheap_outputs());
  tape.push([this, pass = std::move(pass), waits_for_data, bias, pass_on = std::move(pass_on),
             input = keeps_input ? x.saved() : SavedTensor<at::Tensor>(), in = x.gradient, residual = residual.gradient,
             gradient = out.gradient] {
    const auto& [weight, adapted, joined, op_a, low] = pass;
    at::Tensor d_y = gradient->take();
    if (!d_y.defined()) return;
    if (bias.requires_grad()) bias.add_gradient(d_y.sum(0, false, bias.gradient().scalar_type()));
    if (residual) residual->add(d_y);
    if (!has_room(d_y, joined.room)) d_y = pass.memory(d_y.size(0), d_y.options()).copy_(d_y);
    const at::Tensor wide_d_y = pass.wide(d_y), d_low = wide_d_y.narrow(1, joined.rows, joined.room),
                     of_a = d_low.narrow(1, 0, low.size(1));
    joined_low_gradient(pass, d_y, d_low);
    if (pass_on || in) joined.a().narrow(0, 0, low.size(1)).copy_(adapted->a.value());
    const at::Tensor again = pass_on ? pass_on(wide_d_y, joined.w_and_a()) : at::Tensor();
    if (adapted->a.requires_grad()) {
      const auto work = [this, &op = *op_a, of_a, a = adapted->a](const at::Tensor& of_x) {
        weight_gradient(op, of_a, of_x, a, {});
      };
      if (waits_for_data)
        in->when_computed_again(work);
      else
        work(again.defined() ? again : input.get());
    }
    if (pass_on || !in) return;
    auto query =
        kernels_query(FVLM_OP_LINEAR, FVLM_WITH_BACKWARD | FVLM_STRIDED_WEIGHT, d_y.size(0), joined.rows + joined.room);
    query.inner = joined.columns;
    const Linear& op = fp8_or_plain(kernel<Linear>(query), weight, joined.room);
    in->add(op.input_gradient(wide_d_y, joined.w_and_a()));
  });
}

// As swiglu_mlp with SwiGLU in the linears, of joined ones; releases x. Undefined where it has to be computed
// otherwise.
Value Operations::joined_swiglu_mlp(Tape& tape, Value& x, const Layer& up, const Layer& down, const at::Tensor& into) {
  const auto is_possible = [](const Layer& layer, const at::Tensor& input) {
    const at::Tensor joined = layer.weight.joined();
    return joined.defined() && layer.weight.is_adapted() && !layer.bias.defined() && input.defined() &&
           has_room(input, joined.size(1) - layer.weight.value().size(1));
  };
  const int64_t rows = x.data.size(0);
  if (observe_linear_ || rows == 0 || !is_possible(up, x.data) || !is_possible(down, into)) return {};
  JoinedPass of_up(up.weight), of_down(down.weight);
  if (!tape.records(x.requires_grad() || of_up.adapted->requires_grad())) return {};
  const bool gives_inner = tape.recomputes_cheap_outputs() && of_down.adapted->a.requires_grad();
  const Linear& op_down = joined_forward(of_down, rows, 0);
  const uint32_t options = FVLM_WITH_BACKWARD | (op_down.query().options & (FVLM_WITH_FP8 | FVLM_FP8_PAIRS));
  auto forward = kernels_query(FVLM_OP_LINEAR, options | FVLM_WITH_SWIGLU, rows, of_up.joined.rows / 2);
  forward.inner = of_up.joined.columns + of_up.joined.room, forward.pairs = of_up.joined.room;
  auto backward = kernels_query(
      FVLM_OP_LINEAR, options | FVLM_SWIGLU_INPUT | FVLM_STRIDED_WEIGHT | option_if(FVLM_WITH_OUTPUT, gives_inner),
      rows, of_down.joined.rows + of_down.joined.room);
  backward.inner = of_down.joined.columns, backward.pairs = of_down.joined.room;
  const Linear* const with_swiglu = extended(op_down, forward);
  const Linear* const of_swiglu = extended(op_down, backward);
  if (!with_swiglu || !of_swiglu || prefers_swiglu_apart(op_down, rows, forward.width)) return {};

  (void)records_joined(tape, of_up, x, {}, {});
  prepare_joined(of_up, x.data, true);
  const Linear::Output output = with_swiglu->forward(of_up.wide(x.data), of_up.joined.w_and_b(), {},
                                                     {into, of_up.memory(rows, into.options()), {}});
  const Value gate_up(output.pre_activation, true), inner(output.y);
  push_joined_gradients(tape, std::move(of_up), x, gate_up, {}, {}, nullptr);
  x = {};
  (void)records_joined(tape, of_down, gate_up, {}, {});
  prepare_joined(of_down, inner.data, true);
  Value y(op_down
              .forward(of_down.wide(inner.data), of_down.joined.w_and_b(), {},
                       {of_down.memory(rows, into.options()), {}, {}})
              .y,
          true);
  push_joined_gradients(tape, std::move(of_down), inner, y, {}, {},
                        [of_swiglu, gate_up, gives_inner](const at::Tensor& wide_d_y, const at::Tensor& w_and_a) {
                          const at::Tensor again =
                              gives_inner ? at::empty({wide_d_y.size(0), w_and_a.size(1)}, wide_d_y.options())
                                          : at::Tensor();
                          at::Tensor d = gate_up.gradient->allocate_over(gate_up.data);
                          of_swiglu->input_gradient(wide_d_y, w_and_a, gate_up.data, d, {}, false, again);
                          gate_up.gradient->add(std::move(d));
                          return again;
                        });
  return y;
}

void Operations::joined_low_gradient(const JoinedPass& pass, const at::Tensor& d_y, const at::Tensor& d_low) {
  const auto& [weight, adapted, joined, op_a, low] = pass;
  d_low.narrow(1, low.size(1), joined.room - low.size(1)).zero_();
  for (const auto& part : adapted->parts) {
    const auto columns = [&part](const at::Tensor& of) { return of.narrow(1, part.rank_begin, part.rank); };
    const at::Tensor own = d_y.narrow(1, part.row, part.rows), own_low = columns(low), into = columns(d_low),
                     b = columns(joined.b()).narrow(0, part.row, part.rows);
    auto query = kernels_query(FVLM_OP_LINEAR, FVLM_WITH_BACKWARD | FVLM_STRIDED_WEIGHT, d_y.size(0), part.rows);
    query.inner = part.rank;
    if (part.b.requires_grad()) query.gradient_dtype = abi_dtype(part.b.gradient().scalar_type());
    const Linear& op = kernel<Linear>(query);
    const Linear* const both = part.b.requires_grad() ? with_options(op, FVLM_BOTH_GRADIENTS) : nullptr;
    if (both) {
      const bool accumulate = Weight::begin_write(part.b);
      both->both_gradients(own, own_low, b, part.b.gradient(), into, accumulate);
      continue;
    }
    op.input_gradient(own, b, {}, into);
    if (part.b.requires_grad()) weight_gradient(op, own, own_low, part.b, {});
  }
}

Value Operations::adapted_linear(Tape& tape, const Value& x, const Layer& layer, const Value& residual) {
  const bool is_mixed = std::ranges::any_of(layer.weight.parts(),
                                            [](const Parameter* part) { return part->adapter && part->adapter->rows; });
  if (const at::Tensor joined = layer.weight.joined(); joined.defined() && !is_mixed && x.data.size(0) > 0 &&
                                                       has_room(x.data, joined.size(1) - layer.weight.value().size(1)))
    return joined_linear(tape, x, layer, residual);
  AdaptedPass pass{.adapted = std::make_shared<const AdaptedWeight>(layer.weight), .weight = layer.weight};
  const AdaptedWeight& adapted = *pass.adapted;
  const bool records = tape.records(x, adapted, residual);
  for (const auto& part : adapted.parts) (void)tape.records(adapted.a, part.b, part.magnitude, layer.bias);
  pass.drops = adapted.first().dropout > 0 && tape.records();
  const bool is_dora = adapted.is_dora();
  at::Tensor y = is_dora ? frozen_linear(x.data, {layer.weight, {}}, {}, records)
                         : frozen_linear(x.data, layer, residual.data, records);
  const Layer of_a{adapted.a, {}};
  pass.op_a = &linear_for(x.data, of_a, option_if(FVLM_WITH_BACKWARD, records), gradient_type(of_a));
  pass.low = pass.op_a->forward(pass.dropped(x.data), adapted.a.value(), {}).y;
  if (RowAdapters* const rows = adapted.first().rows.get())
    pass.low.mul_(rows->mask(adapted.owners(), pass.low.scalar_type()));
  for (const auto& part : adapted.parts)
    y.narrow(1, part.row, part.rows)
        .addmm_(pass.low.narrow(1, part.rank_begin, part.rank), part.b.value().t(), 1, part.adapter->scale);
  if (is_dora) {
    pass.factors = dora_factors(layer.weight, adapted, pass.norms);
    if (records) pass.direction = y;
    y = y * pass.factors.to(y.scalar_type());
    if (layer.bias.defined()) y.add_(layer.bias.value());
    if (residual.defined()) y.add_(residual.data);
  }
  Value out(y, records);
  if (!records) return out;
  join_side_stream_after_backward(tape);
  tape.push([this, pass = std::move(pass), bias = layer.bias,
             input = adapted.a.requires_grad() ? x.saved() : SavedTensor<at::Tensor>(), in = x.gradient,
             residual = residual.gradient, gradient = out.gradient] {
    const at::Tensor d_y = gradient->take();
    if (!d_y.defined()) return;
    if (bias.requires_grad()) bias.add_gradient(d_y.sum(0, false, bias.gradient().scalar_type()));
    const at::Tensor d_x = adapted_linear_gradient(pass, d_y, input.get(), in != nullptr);
    if (in) in->add(d_x);
    if (residual) residual->add(d_y);
  });
  return out;
}

// Writes the gradients of the adapters, and returns that of x where it is required.
at::Tensor Operations::adapted_linear_gradient(const AdaptedPass& pass, const at::Tensor& of_output,
                                               const at::Tensor& x, bool requires_input) {
  at::Tensor d_y = of_output;
  const AdaptedWeight& adapted = *pass.adapted;
  if (adapted.is_dora()) {
    for (size_t i = 0; i < adapted.parts.size(); ++i) {
      const auto& part = adapted.parts[i];
      if (!part.magnitude.requires_grad()) continue;
      const auto columns = [&](const at::Tensor& of) { return of.narrow(1, part.row, part.rows).to(wide(of)); };
      part.magnitude.add_gradient((columns(d_y) * columns(pass.direction)).sum(0) / pass.norms[i]);
    }
    d_y = d_y * pass.factors.to(d_y.scalar_type());
  }
  const at::Tensor d_low = at::empty_like(pass.low);
  for (const auto& part : adapted.parts) {
    const at::Tensor own = d_y.narrow(1, part.row, part.rows);
    d_low.narrow(1, part.rank_begin, part.rank).addmm_(own, part.b.value(), 0, part.adapter->scale);
    if (!part.b.requires_grad()) continue;
    const at::Tensor low = pass.low.narrow(1, part.rank_begin, part.rank);
    part.b.add_gradient(product(own.t(), low, part.b.gradient().scalar_type()).mul_(part.adapter->scale));
  }
  if (adapted.a.requires_grad()) weight_gradient(*pass.op_a, d_low, pass.dropped(x), adapted.a, {});
  if (!requires_input) return {};
  const at::Tensor d_x = frozen_input_gradient(d_y, pass.weight);
  if (pass.drops) return d_x.add_(at::mm(d_low, adapted.a.value()).mul_(pass.mask(d_x)));
  return d_x.addmm_(d_low, adapted.a.value());
}

} // namespace fvlm::ops
