#include "ops/experts.h"

#include "device/probe.h"
#include "ops/dry_run.h"
#include "ops/pointwise.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/_grouped_mm.h>
#include <ATen/ops/addmm.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/bmm.h>
#include <ATen/ops/bucketize.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/sort.h>
#include <ATen/ops/topk.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cstdlib>
#include <optional>
#include <string_view>

namespace fvlm::ops {
namespace {

// The matrices of one expert, of which the weight has equally many for each.
Weight weight_of(const Weight& weight, int64_t expert, int64_t experts) {
  const auto& parts = weight.parts();
  if (parts.size() == 1) {
    const int64_t rows = weight.value().size(0) / experts;
    return weight.rows(expert * rows, rows);
  }
  const int64_t count = std::ssize(parts) / experts;
  return Weight(std::vector(parts.begin() + expert * count, parts.begin() + (expert + 1) * count));
}

// The numbers of a weight by expert. Those of a quantized one are dequantized for as long as they are read, and where
// one product after the other is computed those of one expert.
class NumbersByExpert {
 public:
  NumbersByExpert(Operations& ops, Weight weight, int64_t experts, bool transposed)
      : ops_(ops), weight_(std::move(weight)), experts_(experts), transposed_(transposed) {}

  // [experts, rows, columns] of what a product is with.
  at::Tensor all() const { return turned(ops_.numbers(weight_).unflatten(0, {experts_, -1})); }
  at::Tensor of(int64_t expert) const {
    return weight_.is_quantized() ? turned(ops_.numbers(weight_of(weight_, expert, experts_))) : all()[expert];
  }
  int64_t columns() const { return transposed_ ? weight_.value().size(0) / experts_ : weight_.value().size(1); }

 private:
  at::Tensor turned(const at::Tensor& matrices) const { return transposed_ ? matrices.transpose(-2, -1) : matrices; }

  Operations& ops_;
  Weight weight_;
  int64_t experts_;
  bool transposed_;
};

// The pairs of a row and an expert of it, sorted by expert, and in their order by row.
class RowsByExpert {
 public:
  RowsByExpert(const at::Tensor& experts, int64_t count, ExpertProducts products)
      : count_(count), chosen_(experts.size(1)), products_(products) {
    const auto [sorted, order] = at::sort(experts.flatten(), /*stable=*/true, /*dim=*/0, /*descending=*/false);
    const at::Tensor numbers = at::arange(order.size(0), order.options());
    source_ = order.div(chosen_, "floor");
    order_ = order;
    place_ = at::empty_like(order).scatter_(0, order, numbers);
    const at::Tensor all = at::arange(count, order.options());
    ends_ = at::bucketize(all, sorted, /*out_int32=*/true, /*right=*/true);
    if (products_ == ExpertProducts::blocks) divide_into_blocks(sorted, numbers, all);
  }

  // Rows of x, one for each pair; and the sums over the pairs of a row.
  at::Tensor gathered(const at::Tensor& x) const { return x.index_select(0, source_); }
  at::Tensor summed(const at::Tensor& pairs) const {
    return pairs.index_select(0, place_).unflatten(0, {-1, chosen_}).sum(1);
  }
  // A number for each pair, [rows, chosen], as a column; and back.
  at::Tensor as_column(const at::Tensor& of_rows) const {
    return of_rows.flatten().index_select(0, order_).unsqueeze(1);
  }
  at::Tensor of_rows(const at::Tensor& column) const {
    return column.flatten().index_select(0, place_).unflatten(0, {-1, chosen_});
  }

  // x w_e of the rows of each expert e. `of_few`: computes it of an expert that has few rows where one product after
  // the other is computed; may be empty.
  using FewRows = std::function<at::Tensor(int64_t expert, const at::Tensor& rows)>;
  at::Tensor product(const at::Tensor& x, const NumbersByExpert& w, const FewRows& of_few = {}) const {
    if (x.is_meta() && products_ != ExpertProducts::blocks) {
      const at::Tensor read = products_ == ExpertProducts::loop ? w.of(0) : w.all(); // takes memory meanwhile
      return at::empty({x.size(0), w.columns()}, x.options());
    }
    if (products_ == ExpertProducts::grouped) return at::_grouped_mm(x, w.all(), ends_);
    if (products_ == ExpertProducts::blocks)
      return at::bmm(in_blocks(x), w.all().index_select(0, block_experts_))
          .flatten(0, 1)
          .index_select(0, block_places_);
    constexpr int64_t few = 8;
    at::Tensor y = at::empty({x.size(0), w.columns()}, x.options());
    for_each_expert([&](int64_t expert, int64_t first, int64_t rows) {
      if (rows == 0) return;
      at::Tensor part = y.narrow(0, first, rows);
      const at::Tensor own = x.narrow(0, first, rows);
      if (of_few && rows <= few)
        part.copy_(of_few(expert, own));
      else
        at::mm_out(part, own, w.of(expert).to(x.scalar_type()));
    });
    return y;
  }

  // Adds d_y_e^T x_e of each expert, or overwrites; gradient: [experts, columns of d_y, columns of x].
  void weight_gradient(const at::Tensor& d_y, const at::Tensor& x, const at::Tensor& gradient, bool accumulate) const {
    const auto write = [accumulate](const at::Tensor& to, const at::Tensor& sum) {
      accumulate ? to.add_(sum) : to.copy_(sum);
    };
    if (x.is_meta() && products_ != ExpertProducts::blocks)
      return write(gradient, at::empty(gradient.sizes(), x.options()));
    if (products_ == ExpertProducts::grouped) return write(gradient, at::_grouped_mm(d_y.t(), x, ends_));
    if (products_ == ExpertProducts::blocks) {
      const at::Tensor of_blocks = at::bmm(in_blocks(d_y).transpose(1, 2), in_blocks(x)).flatten(1);
      return write(gradient, at::mm(blocks_of_experts_.to(x.scalar_type()), of_blocks).view(gradient.sizes()));
    }
    for_each_expert([&](int64_t expert, int64_t first, int64_t rows) {
      if (rows > 0)
        write(gradient[expert], at::mm(d_y.narrow(0, first, rows).t(), x.narrow(0, first, rows)));
      else if (!accumulate)
        gradient[expert].zero_();
    });
  }

 private:
  template <class Work>
  void for_each_expert(const Work& work) const {
    const auto* ends = ends_.const_data_ptr<int32_t>();
    for (int64_t expert = 0; expert < count_; ++expert) {
      const int64_t first = expert == 0 ? 0 : ends[expert - 1];
      work(expert, first, ends[expert] - first);
    }
  }

  // As many rows a block as an expert has on average, so that there are at most twice as many blocks as experts; and
  // one where rows are fewer than experts. Rows of an expert fill whole blocks, the last one with zeros.
  void divide_into_blocks(const at::Tensor& sorted, const at::Tensor& numbers, const at::Tensor& all) {
    const int64_t pairs = sorted.size(0);
    block_rows_ = pairs <= 2 * count_ ? 1 : (pairs + count_ - 1) / count_;
    const int64_t blocks = (pairs + count_ * (block_rows_ - 1)) / block_rows_;
    const at::Tensor ends = ends_.to(at::kLong), firsts = at::constant_pad_nd(ends.narrow(0, 0, count_ - 1), {1, 0}),
                     used = (ends - firsts + (block_rows_ - 1)).div_(block_rows_, "floor"), block_ends = used.cumsum(0);
    const at::Tensor shift = (block_ends - used).mul_(block_rows_).sub_(firsts);
    block_places_ = shift.index_select(0, sorted).add_(numbers);
    const at::Tensor owners =
        at::bucketize(at::arange(blocks, sorted.options()), block_ends, /*out_int32=*/false, /*right=*/true);
    blocks_of_experts_ = all.unsqueeze(1).eq(owners.unsqueeze(0));
    block_experts_ = owners.clamp_max(count_ - 1); // of blocks behind the last used one, which are zeros
  }

  at::Tensor in_blocks(const at::Tensor& rows) const {
    const int64_t blocks = block_experts_.size(0);
    return at::zeros({blocks * block_rows_, rows.size(1)}, rows.options())
        .index_copy_(0, block_places_, rows)
        .unflatten(0, {blocks, block_rows_});
  }

  int64_t count_, chosen_;
  ExpertProducts products_;
  at::Tensor order_, source_, place_; // int64 [pairs]: the pair of each sorted one, its row; where each pair is
  at::Tensor ends_;                   // int32 [experts]: behind the last pair of each
  int64_t block_rows_ = 0;
  at::Tensor block_places_, block_experts_, blocks_of_experts_; // [pairs], [blocks], bool [experts, blocks]
};
using Pairs = std::shared_ptr<const RowsByExpert>;

// They are gathered again where they are read again, as there are several for each row.
Value gather(Tape& tape, const Value& x, const Pairs& pairs) {
  Value y(pairs->gathered(x.data), tape.records(x));
  if (!y.requires_grad()) return y;
  y.recompute =
      std::make_shared<const std::function<at::Tensor()>>([pairs, x = x.saved()] { return pairs->gathered(x.get()); });
  tape.push([pairs, in = x.gradient, out = y.gradient] {
    if (const at::Tensor d_y = out->take(); d_y.defined()) in->add(pairs->summed(d_y));
  });
  return y;
}

Value sum(Tape& tape, const Value& x, const Pairs& pairs) {
  Value y(pairs->summed(x.data), tape.records(x));
  if (!y.requires_grad()) return y;
  tape.push([pairs, in = x.gradient, out = y.gradient] {
    if (const at::Tensor d_y = out->take(); d_y.defined()) in->add(pairs->gathered(d_y));
  });
  return y;
}

// Each pair's row times the pair's weight.
Value weighted(Tape& tape, const Value& x, const Value& weights, const Pairs& pairs) {
  const at::Tensor factors = pairs->as_column(weights.data);
  Value y(x.data * factors, tape.records(x, weights));
  if (!y.requires_grad()) return y;
  y.recompute =
      std::make_shared<const std::function<at::Tensor()>>([x = x.saved(), factors] { return x.get() * factors; });
  tape.push([pairs, factors, x = x.saved(), in = x.gradient, of_weights = weights.gradient, out = y.gradient] {
    const at::Tensor d_y = out->take();
    if (!d_y.defined()) return;
    if (of_weights) of_weights->add(pairs->of_rows((d_y * x.get()).sum(1)));
    if (in) in->add(d_y * factors);
  });
  return y;
}

// x w_e^T of the rows of each expert e.
Value linear_by_expert(Tape& tape, Operations& ops, const Value& x, const Weight& weight, int64_t experts,
                       const Pairs& pairs) {
  const bool records = tape.records(x, weight);
  RowsByExpert::FewRows of_few; // by a plugin's linear, which reads codes, and weights in bfloat16, as they are
  if (!records || weight.is_quantized())
    of_few = [&](int64_t expert, const at::Tensor& rows) {
      Tape none(Tape::Mode::forward_only);
      return ops.linear(none, Value(rows), weight_of(weight, expert, experts)).data;
    };
  Value y(pairs->product(x.data, {ops, weight, experts, /*transposed=*/true}, of_few), records);
  if (!records) return y;
  tape.push([&ops, experts, weight, pairs, x = weight.requires_grad() ? x.saved() : SavedTensor<at::Tensor>(),
             in = x.gradient, out = y.gradient] {
    const at::Tensor d_y = out->take();
    if (!d_y.defined()) return;
    if (weight.requires_grad()) {
      const bool accumulate = Weight::begin_write(weight);
      pairs->weight_gradient(d_y.contiguous(), x.get(), weight.gradient().unflatten(0, {experts, -1}), accumulate);
    }
    if (in) in->add(pairs->product(d_y.contiguous(), {ops, weight, experts, /*transposed=*/false}));
  });
  return y;
}

// A weight as a plugin takes it, [experts, rows of an expert, .]: numbers, or codes and their scales.
struct StoredByExpert {
  StoredByExpert(const Weight& weight, int64_t experts) {
    const auto by_expert = [experts](const at::Tensor& rows) { return rows.unflatten(0, {experts, -1}); };
    matrices = by_expert(weight.is_quantized() ? weight.packed()[0] : weight.value());
    if (weight.is_quantized()) scales = by_expert(weight.packed()[1].unsqueeze(-1).flatten(1));
  }
  at::Tensor matrices, scales;
};

// The option of weights that are quantized by this scheme; none: no plugin takes it.
std::optional<uint32_t> option_of(const std::string& scheme) {
  if (scheme.empty()) return 0;
  if (scheme == "int8") return FVLM_INT8_WEIGHTS;
  if (scheme == "int4") return FVLM_INT4_WEIGHTS;
  return std::nullopt;
}

// Undefined where no plugin computes it.
at::Tensor mixture_of_few_rows(Operations& ops, const at::Tensor& x, const at::Tensor& logits, const Routing& routing,
                               const ExpertWeights& experts) {
  const at::Tensor& bias = routing.bias.value();
  const StoredByExpert gate_up(experts.gate_up, experts.count), down(experts.down, experts.count);
  const auto codes = option_of(experts.gate_up.scheme());
  if (!codes || experts.gate_up.scheme() != experts.down.scheme()) return {};
  const auto fits = [type = x.scalar_type()](const at::Tensor& numbers, bool is_codes = false) {
    return (is_codes || numbers.scalar_type() == type) && numbers.is_contiguous();
  };
  if (logits.scalar_type() != x.scalar_type() || !fits(gate_up.matrices, *codes) || !fits(down.matrices, *codes) ||
      (bias.defined() && !fits(bias)))
    return {};
  const FewRowsExperts* const op = ops.few_rows_experts(
      {x.size(0), x.size(1), experts.down.value().size(1), experts.count, routing.chosen},
      *codes | option_if(FVLM_WITH_BIAS, bias.defined()) | option_if(FVLM_SIGMOID_ROUTER, routing.sigmoid) |
          option_if(FVLM_NORMALIZED_ROUTER, routing.normalized),
      routing.epsilon, routing.scale);
  if (!op) return {};
  return op->forward({x, logits, bias, gate_up.matrices, down.matrices, gate_up.scales, down.scales});
}

// Whether GPUs here have the kernel for all experts, or would have it: in a dry run there may be none.
bool have_grouped_products() {
  const char* portable = std::getenv("FVLM_PORTABLE_KERNELS"); // as plugins/common/cuda_device.h reads it
  if (portable && *portable && portable != std::string_view("0")) return false;
  static const bool have = [] {
    const auto devices = device::probe_cuda().devices;
    return devices.empty() || devices.front().capability_major == 9 || devices.front().capability_major == 10;
  }();
  return have;
}

} // namespace

Routed route(Tape& tape, const Value& logits, const Routing& routing) {
  const at::Tensor wide = widened(logits.data), scores = routing.sigmoid ? wide.sigmoid() : at::softmax(wide, -1);
  const at::Tensor chosen_by = routing.bias.defined() ? scores + routing.bias.value() : scores;
  const at::Tensor experts = std::get<1>(at::topk(chosen_by, routing.chosen, -1));
  const at::Tensor own = scores.gather(1, experts);
  at::Tensor total; // [rows, 1]
  if (routing.normalized) total = own.sum(1, true).add_(routing.epsilon);
  const at::Tensor shares = routing.normalized ? own / total : own;
  const auto type = logits.data.scalar_type();
  Routed out{experts, Value((shares * routing.scale).to(type), tape.records(logits))};
  if (!out.weights.requires_grad()) return out;
  tape.push([=, sigmoid = routing.sigmoid, scale = routing.scale, in = logits.gradient, out = out.weights.gradient] {
    const at::Tensor d_weights = out->take();
    if (!d_weights.defined()) return;
    at::Tensor d_own = d_weights.to(scores.scalar_type()) * scale;
    if (total.defined()) d_own = (d_own - (d_own * shares).sum(1, true)) / total;
    const at::Tensor d_scores = at::zeros(scores.sizes(), scores.options()).scatter_(1, experts, d_own);
    const at::Tensor d_logits =
        sigmoid ? d_scores * scores * (1 - scores) : scores * (d_scores - (d_scores * scores).sum(1, true));
    in->add(d_logits.to(type));
  });
  return out;
}

ExpertProducts expert_products(at::Device device, at::ScalarType type, int64_t experts, int64_t width, int64_t inner) {
  if (real_device(device).is_cpu()) return ExpertProducts::loop;
  // A row of each matrix is a multiple of 16 bytes, and the kernel has a thread for each expert to prepare itself.
  const bool fits = width % 8 == 0 && inner % 8 == 0 && experts <= 1024;
  return type == at::kBFloat16 && fits && have_grouped_products() ? ExpertProducts::grouped : ExpertProducts::blocks;
}

Value mixture(Tape& tape, Operations& ops, const Value& x, const Value& logits, const Routing& routing,
              const ExpertWeights& experts, ExpertProducts products) {
  if (!tape.records())
    if (const at::Tensor y = mixture_of_few_rows(ops, x.data, logits.data, routing, experts); y.defined())
      return Value(y);
  return mix_experts(tape, ops, x, route(tape, logits, routing), experts, products);
}

Value mix_experts(Tape& tape, Operations& ops, const Value& x, const Routed& routed, const ExpertWeights& experts,
                  ExpertProducts products) {
  const auto pairs = std::make_shared<const RowsByExpert>(routed.experts, experts.count, products);
  Value rows = linear_by_expert(tape, ops, gather(tape, x, pairs), experts.gate_up, experts.count, pairs);
  rows = ops.swiglu(tape, rows);
  // In place of what the experts make of the rows, which is linear in them and has more columns to keep.
  rows = weighted(tape, rows, routed.weights, pairs);
  return sum(tape, linear_by_expert(tape, ops, rows, experts.down, experts.count, pairs), pairs);
}

} // namespace fvlm::ops
