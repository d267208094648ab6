// Checks of partial calls of attention plugins, whose keys are some of those that the queries attend to.
#include "check/attention.h"
#include "check/formulas.h"
#include "check/generic.h"
#include "check/workbench.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/concat.h>
#include <ATen/ops/full.h>
#include <ATen/ops/logsumexp.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

namespace fvlm::check {
namespace {

using Lengths = std::vector<int64_t>;
constexpr double infinity = std::numeric_limits<double>::infinity(), log_2 = 0.69314718055994530942;

struct PartialCase {
  at::ScalarType dtype = at::kFloat;
  bool causal = false; // within the call's own keys; all others come before them
  int window = 0;      // of the call's own keys
  int heads_q = 4, heads_kv = 2, head_dim = 64;
  Lengths lengths_q = {5, 17, 9}, lengths_kv = {5, 17, 9}; // of the call
  Lengths others = {3, 0, 20};                             // keys of other calls, of each segment
  int64_t padding = 3;
  uint64_t seed = 1;

  int64_t tokens_q() const { return std::accumulate(lengths_q.begin(), lengths_q.end(), padding); }
  int64_t tokens_kv() const { return std::accumulate(lengths_kv.begin(), lengths_kv.end(), padding); }
  double scale() const { return static_cast<float>(1 / std::sqrt(static_cast<double>(head_dim))); }
};

fvlm_attention_query query_of(const PartialCase& c, at::Device device) {
  fvlm_attention_query query{};
  query.struct_size = sizeof query;
  query.causal = c.causal;
  query.device = device_of(device);
  query.dtype = dtype_of(c.dtype);
  query.heads_q = c.heads_q;
  query.heads_kv = c.heads_kv;
  query.head_dim = c.head_dim;
  query.max_seqlen_q = static_cast<int32_t>(*std::ranges::max_element(c.lengths_q));
  query.max_seqlen_kv = static_cast<int32_t>(*std::ranges::max_element(c.lengths_kv));
  query.tokens_q = c.tokens_q();
  query.tokens_kv = c.tokens_kv();
  query.segments = std::ssize(c.lengths_q);
  query.scale = static_cast<float>(c.scale());
  query.rope_theta = 10000;
  query.needs_backward = query.partial = 1;
  query.window = c.window;
  return query;
}

// What a call is given and what it should come to, each segment's rows in turn.
struct Numbers {
  at::Tensor q, k, v, d_out;
  at::Tensor merged_out, merged_log_sum_exp;  // of all keys, as backward gets them
  at::Tensor out, log_sum_exp, d_q, d_k, d_v; // of the call's own
};

// One segment's, [heads, rows, ...], in `work`.
struct Segment {
  at::Tensor q, k, v, other_k, other_v, hidden; // hidden: of the own keys
  double scale;

  static at::Tensor scores(const at::Tensor& q, const at::Tensor& k, double scale) {
    return at::matmul(q, k.transpose(1, 2)) * scale;
  }
  at::Tensor own_scores() const { return scores(q, k, scale).masked_fill(hidden, -infinity); }
};

// Natural logarithms here, minus infinity where there is no key.
std::pair<at::Tensor, at::Tensor> attend(const at::Tensor& scores, const at::Tensor& v) {
  const at::Tensor sums = at::logsumexp(scores, -1, true);
  return {at::matmul((scores - sums).exp().nan_to_num(0), v), sums};
}

void compute(const PartialCase& c, Numbers& n, const at::Tensor& other_k, const at::Tensor& other_v, bool gradients,
             at::ScalarType work) {
  const int64_t group = c.heads_q / c.heads_kv;
  int64_t at_q = 0, at_kv = 0, at_other = 0;
  for (size_t s = 0; s < c.lengths_q.size(); ++s) {
    const int64_t rows = c.lengths_q[s], keys = c.lengths_kv[s], others = c.others[s];
    const auto queries = [&](const at::Tensor& x) { return x.narrow(0, at_q, rows).to(work).transpose(0, 1); };
    const auto of_keys = [&](const at::Tensor& x, int64_t first, int64_t count) {
      return x.narrow(0, first, count).to(work).repeat_interleave(group, 1).transpose(0, 1);
    };
    const at::Tensor back = at::arange(rows).unsqueeze(1) + keys - rows - at::arange(keys).unsqueeze(0);
    const at::Tensor visible = c.window ? back.ge(0).logical_and(back.lt(c.window)) : back.ge(0);
    const Segment segment{queries(n.q),
                          of_keys(n.k, at_kv, keys),
                          of_keys(n.v, at_kv, keys),
                          of_keys(other_k, at_other, others),
                          of_keys(other_v, at_other, others),
                          c.causal ? visible.logical_not() : at::zeros({rows, keys}, at::kBool),
                          c.scale()};
    const at::Tensor scores = segment.own_scores();
    if (!gradients) {
      const auto [own, own_sums] = attend(scores, segment.v);
      const auto [all, all_sums] =
          attend(at::concat({Segment::scores(segment.q, segment.other_k, c.scale()), scores}, 2),
                 at::concat({segment.other_v, segment.v}, 1));
      const auto store = [&](const at::Tensor& to, const at::Tensor& x) {
        to.narrow(0, at_q, rows).copy_(x.transpose(0, 1));
      };
      const auto log_2_of = [](const at::Tensor& sums) {
        return (sums.squeeze(2) / log_2).masked_fill(sums.squeeze(2) == -infinity, infinity);
      };
      store(n.out, own);
      store(n.merged_out, all);
      store(n.log_sum_exp, log_2_of(own_sums));
      store(n.merged_log_sum_exp, log_2_of(all_sums));
    } else {
      const at::Tensor d_out = queries(n.d_out), merged = queries(n.merged_out),
                       sums = n.merged_log_sum_exp.narrow(0, at_q, rows).to(work).transpose(0, 1).unsqueeze(2);
      const at::Tensor weights = (scores - sums * log_2).exp();
      const at::Tensor d_scores =
          weights * (at::matmul(d_out, segment.v.transpose(1, 2)) - (d_out * merged).sum(-1, true)) * c.scale();
      const auto store_keys = [&](const at::Tensor& to, const at::Tensor& x) {
        to.narrow(0, at_kv, keys).copy_(x.unflatten(0, {c.heads_kv, group}).sum(1).transpose(0, 1));
      };
      n.d_q.narrow(0, at_q, rows).copy_(at::matmul(d_scores, segment.k).transpose(0, 1));
      store_keys(n.d_k, at::matmul(d_scores.transpose(1, 2), segment.q));
      store_keys(n.d_v, at::matmul(weights.transpose(1, 2), d_out));
    }
    at_q += rows, at_kv += keys, at_other += others;
  }
}

Numbers numbers_of(const PartialCase& c, at::ScalarType work) {
  const auto of = [&](int64_t tokens, int heads, uint64_t index) {
    return normal({tokens, heads, c.head_dim}, c.seed * 8 + index, c.dtype);
  };
  Numbers n;
  n.q = of(c.tokens_q(), c.heads_q, 0), n.d_out = of(c.tokens_q(), c.heads_q, 1);
  n.k = of(c.tokens_kv(), c.heads_kv, 2), n.v = of(c.tokens_kv(), c.heads_kv, 3);
  const int64_t others = std::accumulate(c.others.begin(), c.others.end(), int64_t{0});
  const at::Tensor other_k = of(others, c.heads_kv, 4), other_v = of(others, c.heads_kv, 5);
  for (const at::Tensor* rows : {&n.q, &n.d_out, &n.k, &n.v})
    rows->narrow(0, rows->size(0) - c.padding, c.padding).fill_(std::numeric_limits<double>::quiet_NaN());
  n.out = at::zeros(n.q.sizes(), at::kDouble), n.merged_out = n.out.clone();
  n.log_sum_exp = at::full({c.tokens_q(), c.heads_q}, infinity, at::kDouble);
  n.merged_log_sum_exp = n.log_sum_exp.clone();
  compute(c, n, other_k, other_v, false, at::kDouble);
  n.merged_out = n.merged_out.to(c.dtype); // as they are given
  n.merged_log_sum_exp = n.merged_log_sum_exp.to(at_least_float(c.dtype));
  n.d_q = at::zeros(n.q.sizes(), at::kDouble);
  n.d_k = at::zeros(n.k.sizes(), at::kDouble), n.d_v = n.d_k.clone();
  if (work != at::kDouble) {
    const at::Tensor merged_out = n.merged_out, merged = n.merged_log_sum_exp;
    n.merged_out = at::zeros(n.q.sizes(), at::kDouble), n.merged_log_sum_exp = n.log_sum_exp.clone();
    compute(c, n, other_k, other_v, false, work);
    n.merged_out = merged_out, n.merged_log_sum_exp = merged;
  }
  compute(c, n, other_k, other_v, true, work);
  return n;
}

at::Tensor cumulative(const Lengths& lengths) {
  std::vector<int32_t> sums{0};
  for (const int64_t length : lengths) sums.push_back(sums.back() + static_cast<int32_t>(length));
  return at::tensor(sums, at::kInt);
}

Run run(Context& context, const PartialCase& c, const Variation& variation) {
  const auto& table = context.table<fvlm_attention_v1>();
  const Numbers n = numbers_of(c, at::kDouble);
  Workbench bench(context, variation);
  if (!bench.begin(table, query_of(c, context.device))) return bench.finish();
  fvlm_attention_forward forward{};
  forward.q = bench.input("q", n.q).abi();
  forward.k = bench.input("k", n.k).abi();
  forward.v = bench.input("v", n.v).abi();
  forward.cu_seqlens_q = bench.input("cu_seqlens_q", cumulative(c.lengths_q), Rows::contiguous).abi();
  forward.cu_seqlens_kv = bench.input("cu_seqlens_kv", cumulative(c.lengths_kv), Rows::contiguous).abi();
  forward.out = bench.output("out", n.q.sizes(), c.dtype).abi();
  const auto saved = bench.saved("saved");
  if (saved.size() != 1 || saved[0]->view().sizes() != at::IntArrayRef({c.tokens_q(), c.heads_q}) ||
      saved[0]->view().scalar_type() != at_least_float(c.dtype))
    throw RowAborted{State::failed, "requirements() asks for other tensors than the log-sum-exp, [tokens_q, heads_q]"};
  saved[0]->view().fill_(infinity);
  forward.saved[0] = saved[0]->abi();
  bench.call("forward", bench.required().forward_workspace, table.forward, forward);
  if (!bench.can_continue()) return bench.finish();

  fvlm_attention_backward backward{};
  backward.q = forward.q, backward.k = forward.k, backward.v = forward.v;
  backward.cu_seqlens_q = forward.cu_seqlens_q, backward.cu_seqlens_kv = forward.cu_seqlens_kv;
  backward.out = bench.input("merged out", n.merged_out).abi();
  backward.saved[0] = bench.input("merged log-sum-exp", n.merged_log_sum_exp, Rows::contiguous).abi();
  backward.d_out = bench.input("d_out", n.d_out).abi();
  backward.d_q = bench.output("d_q", n.q.sizes(), c.dtype).abi();
  backward.d_k = bench.output("d_k", n.k.sizes(), c.dtype).abi();
  backward.d_v = bench.output("d_v", n.v.sizes(), c.dtype).abi();
  bench.call("backward", bench.required().backward_workspace, table.backward, backward);
  return bench.finish();
}

// The log-sum-exp of rows with a key, to what float32 and approximate exponentials give; the others stay infinite.
std::string check_log_sum_exp(const PartialCase& c, const Run& run, double& worst) {
  const at::Tensor* found = run.output("saved[0]");
  if (!found) return "saved[0] was not written";
  const at::Tensor expected = numbers_of(c, at::kDouble).log_sum_exp, own = found->to(at::kDouble).cpu();
  if (!expected.isinf().equal(own == infinity)) return "saved[0] is infinite for other rows than those without a key";
  const double tolerance = c.dtype == at::kDouble ? 1e-10 : 2e-4;
  const double largest = (own - expected).nan_to_num(0, 0, 0).abs().max().item<double>();
  worst = std::max(worst, largest / tolerance);
  return largest <= tolerance ? "" : fmt::format("saved[0] differs by {}, {} is allowed", largest, tolerance);
}

bool has_feature(Context& context, uint32_t feature) {
  const auto& table = context.table<fvlm_attention_v1>();
  return table.base.struct_size >= sizeof table && (table.features & feature);
}

Trial partial_trial(const PartialCase& c) {
  Trial trial;
  trial.label = fmt::format("{}{}{}, {}:{} heads of {}, {} rows, {} keys and {} of other calls", name_of(c.dtype),
                            c.causal ? " causal" : "", c.window ? fmt::format(" window of {}", c.window) : "",
                            c.heads_q, c.heads_kv, c.head_dim, fmt::join(c.lengths_q, " "),
                            fmt::join(c.lengths_kv, " "), fmt::join(c.others, " "));
  trial.supports = [c](Context& context) {
    if (!has_feature(context, FVLM_ATTENTION_PARTIAL))
      return fvlm_support{sizeof(fvlm_support), 0, "features lacks FVLM_ATTENTION_PARTIAL"};
    if (c.window && !has_feature(context, FVLM_ATTENTION_PARTIAL_WINDOWS))
      return fvlm_support{sizeof(fvlm_support), 0, "features lacks FVLM_ATTENTION_PARTIAL_WINDOWS"};
    return query_support(context.table<fvlm_attention_v1>().supports, query_of(c, context.device));
  };
  trial.run = [c](Context& context, const Variation& variation) { return run(context, c, variation); };
  trial.expect = once([c] {
    const Numbers exact = numbers_of(c, at::kDouble), naive = numbers_of(c, c.dtype);
    const double product = 4 * std::sqrt(static_cast<double>(c.head_dim));
    return Expectation{{"out", exact.out, naive.out, c.dtype, 1},
                       {"d_q", exact.d_q, naive.d_q, c.dtype, product},
                       {"d_k", exact.d_k, naive.d_k, c.dtype, product},
                       {"d_v", exact.d_v, naive.d_v, c.dtype, 1}};
  });
  trial.extra_check = [c](const Context&, const Run& run, double& worst) { return check_log_sum_exp(c, run, worst); };
  return trial;
}

Outcome partial(Context& context, bool captured) {
  std::vector<PartialCase> cases{
      {},
      {.causal = true},
      {.lengths_q = {5, 17, 9}, .lengths_kv = {0, 40, 70}, .others = {4, 0, 1}},
      {.lengths_q = {0, 17, 9}, .lengths_kv = {30, 0, 7}, .others = {4, 0, 0}},
      {.causal = true, .heads_q = 9, .heads_kv = 3, .lengths_q = {200, 1}, .lengths_kv = {200, 1}, .others = {90, 300}},
      {.heads_q = 2, .heads_kv = 2, .lengths_q = {150, 200}, .lengths_kv = {200, 150}, .others = {1, 0}},
      {.heads_q = 6, .heads_kv = 2, .lengths_q = {600}, .lengths_kv = {300}, .others = {600}, .padding = 40},
      {.causal = true, .head_dim = 256, .lengths_q = {9, 200, 1}, .lengths_kv = {8, 199, 0}, .others = {1, 5, 7}},
      {.causal = true, .window = 30, .lengths_q = {20, 100}, .lengths_kv = {20, 100}, .others = {8, 0}},
      {.causal = true,
       .window = 64,
       .heads_q = 8,
       .head_dim = 256,
       .lengths_q = {200, 40},
       .lengths_kv = {200, 40},
       .others = {20, 9}}};
  std::vector<PartialCase> all;
  for (const auto dtype : floating)
    for (PartialCase one : cases) {
      one.dtype = dtype;
      all.push_back(one);
    }
  if (!has_feature(context, FVLM_ATTENTION_PARTIAL)) return not_applicable("features lacks FVLM_ATTENTION_PARTIAL");
  return expect_correct(context, trials_of(all, partial_trial), {.captured = captured});
}

Outcome partial_calls(Context& context) {
  return partial(context, false);
}

Outcome partial_captured(Context& context) {
  if (context.device.is_cpu()) return not_applicable("there are no graphs on a CPU");
  return partial(context, true);
}

} // namespace

std::vector<Check> partial_attention_checks(const std::string& needs) {
  return {{"partial", "some of the keys: their log-sum-exp, and gradients by that of all keys, where features say so",
           partial_calls, needs + ",groups,padding_nan"},
          {"partial_captured", "the same, replayed from a CUDA graph", partial_captured, needs + ",partial"}};
}

} // namespace fvlm::check
