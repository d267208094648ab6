#include "check/attention.h"

#include "check/families.h"
#include "check/formulas.h"
#include "check/workbench.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/concat.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cmath>
#include <numeric>

namespace fvlm::check {
namespace {

int64_t sum(const std::vector<int64_t>& values) {
  return std::accumulate(values.begin(), values.end(), int64_t{0});
}

int32_t longest(const std::vector<int64_t>& lengths) {
  int64_t most = 0;
  for (int64_t length : lengths) most = std::max(most, length);
  return static_cast<int32_t>(most);
}

double scale_of(const AttentionCase& c) {
  return c.scale != 0 ? c.scale : 1 / std::sqrt(static_cast<double>(c.head_dim));
}

fvlm_attention_query query_of(const AttentionCase& c, at::Device device) {
  fvlm_attention_query query{};
  query.struct_size = sizeof query;
  query.causal = c.causal;
  query.window = c.window;
  query.device = device_of(device);
  query.dtype = dtype_of(c.dtype);
  query.heads_q = c.heads_q;
  query.heads_kv = c.heads_kv;
  query.head_dim = c.head_dim;
  query.max_seqlen_q = std::max(1, longest(c.lengths_q));
  query.max_seqlen_kv = std::max(1, longest(c.kv()));
  query.rotary_dim = c.rotary_dim;
  query.tokens_q = c.tokens_q();
  query.tokens_kv = c.tokens_kv();
  query.segments = c.segments();
  query.scale = static_cast<float>(scale_of(c));
  query.rope_theta = c.rope_theta;
  query.needs_backward = c.backward;
  query.even = c.uniform_lengths;
  query.guests = !c.extra_queries.empty();
  query.queries_alone = c.dq_only;
  return query;
}

at::Tensor cumulative(const std::vector<int64_t>& lengths, int64_t spare) {
  std::vector<int32_t> sums{0};
  for (int64_t length : lengths) sums.push_back(sums.back() + static_cast<int32_t>(length));
  sums.insert(sums.end(), static_cast<size_t>(spare), sums.back());
  return at::tensor(sums, at::kInt);
}

at::Tensor positions(const std::vector<int64_t>& lengths, int64_t capacity, int64_t first = 0) {
  auto all = at::zeros({capacity}, at::kInt);
  int64_t at = 0;
  for (int64_t length : lengths) {
    all.narrow(0, at, length).copy_(at::arange(first, first + length, at::kInt));
    at += length;
  }
  return all;
}

struct Numbers {
  at::Tensor q, k, v, d_out;
  at::Tensor guest_q, guest_d_out; // no rows without extra queries
};

Numbers numbers_of(const AttentionCase& c) {
  Numbers n{normal({c.tokens_q(), c.heads_q, c.head_dim}, c.seed * 4, c.dtype, c.magnitude),
            normal({c.tokens_kv(), c.heads_kv, c.head_dim}, c.seed * 4 + 1, c.dtype),
            normal({c.tokens_kv(), c.heads_kv, c.head_dim}, c.seed * 4 + 2, c.dtype),
            normal({c.tokens_q(), c.heads_q, c.head_dim}, c.seed * 4 + 3, c.dtype),
            normal({sum(c.extra_queries), c.heads_q, c.head_dim}, c.seed * 4 + 1000, c.dtype, c.magnitude),
            normal({sum(c.extra_queries), c.heads_q, c.head_dim}, c.seed * 4 + 1001, c.dtype)};
  for (at::Tensor* rows : {&n.q, &n.d_out}) rows->narrow(0, sum(c.lengths_q), c.padding_q).fill_(c.padding_holds);
  for (at::Tensor* rows : {&n.k, &n.v}) {
    rows->narrow(0, sum(c.kv()), c.padding_kv).fill_(c.padding_holds);
    int64_t at = 0;
    for (size_t s = 0; s < c.kv().size(); at += c.kv()[s++])
      if (c.unattended_keys_hold != 0 && c.lengths_q[s] == 0)
        rows->narrow(0, at, c.kv()[s]).fill_(c.unattended_keys_hold);
  }
  return n;
}

// Rows of each segment, and those behind all of them. A narrow() of each would have a gradient of all rows.
std::vector<at::Tensor> apart(const at::Tensor& rows, std::vector<int64_t> lengths) {
  lengths.push_back(rows.size(0) - sum(lengths));
  return rows.split_with_sizes(lengths);
}

// The attention output of each segment's queries; `lengths_q` is the number of queries per segment.
at::Tensor attend(const AttentionCase& c, const at::Tensor& q, const std::vector<int64_t>& lengths_q,
                  const at::Tensor& k, const at::Tensor& v, at::ScalarType work) {
  std::vector<at::Tensor> rows{at::zeros({0, c.heads_q, c.head_dim}, work)};
  const auto queries = apart(q, lengths_q), keys = apart(k, c.kv()), values = apart(v, c.kv());
  for (size_t s = 0; s < lengths_q.size(); ++s) {
    const int64_t length_q = lengths_q[s], length_kv = c.kv()[s];
    // Fully masked rows: all of them where the segment has no key, the first ones where causal queries outnumber keys.
    const int64_t fully_masked = length_kv == 0 ? length_q : c.causal ? std::max<int64_t>(0, length_q - length_kv) : 0;
    const int64_t attending = length_q - fully_masked;
    if (fully_masked > 0) rows.push_back(at::zeros({fully_masked, c.heads_q, c.head_dim}, work));
    if (attending > 0) {
      auto qs = queries[s].narrow(0, fully_masked, attending).transpose(0, 1); // [heads, rows, head_dim]
      auto ks = keys[s].repeat_interleave(c.heads_q / c.heads_kv, 1).transpose(0, 1);
      auto vs = values[s].repeat_interleave(c.heads_q / c.heads_kv, 1).transpose(0, 1);
      auto scores = at::matmul(qs, ks.transpose(1, 2)) * scale_of(c);
      if (c.causal) {
        auto hidden = at::ones({attending, length_kv}, at::kBool).triu(length_kv - attending + 1);
        if (c.window > 0) hidden |= at::ones({attending, length_kv}, at::kBool).tril(length_kv - attending - c.window);
        scores = scores.masked_fill(hidden, -std::numeric_limits<double>::infinity());
      }
      rows.push_back(at::matmul(at::softmax(scores, -1), vs).transpose(0, 1));
    }
  }
  return at::concat(rows, 0);
}

// out, d_q, d_k, d_v with every step in `work`.
std::vector<at::Tensor> formula(const AttentionCase& c, const Numbers& n, at::ScalarType work) {
  auto q = leaf(n.q, work), k = leaf(n.k, work), v = leaf(n.v, work);
  auto rotated_q = rotate(q, positions(c.lengths_q, c.tokens_q(), c.first_position), c.rotary_dim, c.rope_theta);
  auto rotated_k = rotate(k, positions(c.kv(), c.tokens_kv()), c.rotary_dim, c.rope_theta);
  auto out = at::concat(
      {attend(c, rotated_q, c.lengths_q, rotated_k, v, work), at::zeros({c.padding_q, c.heads_q, c.head_dim}, work)});
  std::vector<at::Tensor> results{out.detach()};
  if (!c.backward) return results;
  std::vector<at::Tensor> outs{out}, d_outs{n.d_out};
  if (!c.extra_queries.empty()) {
    outs.push_back(attend(c, n.guest_q.to(work), c.extra_queries, k, v, work));
    d_outs.push_back(n.guest_d_out);
  }
  auto d = gradients(outs, {q, k, v}, d_outs);
  if (c.dq_only) d.resize(1);
  results.insert(results.end(), d.begin(), d.end());
  return results;
}

Expectation expect(const AttentionCase& c) {
  const Numbers n = numbers_of(c);
  auto exact = formula(c, n, at::kDouble), naive = formula(c, n, c.dtype);
  Expectation all;
  const char* names[] = {"out", "d_q", "d_k", "d_v"};
  // d_q and d_k are sums of differences of products d_out v, which cancel: with a single key to nothing. A score's
  // rounding, in proportion to its size, becomes a probability's.
  const double spread = std::sqrt(static_cast<double>(c.head_dim)) * scale_of(c);
  const double scores = spread * root_mean_square(n.q) * root_mean_square(n.k);
  const double product = 4 * spread * root_mean_square(n.d_out) * root_mean_square(n.v) * std::max(1.0, scores);
  const double scales[] = {scores * root_mean_square(n.v), product * root_mean_square(n.k),
                           product * root_mean_square(n.q), scores * root_mean_square(n.d_out)};
  for (size_t i = 0; i < exact.size(); ++i) all.push_back({names[i], exact[i], naive[i], c.dtype, scales[i]});
  return all;
}

Run run(Context& context, const AttentionCase& c, const Variation& variation) {
  const auto& table = context.table<fvlm_attention_v1>();
  const Numbers n = numbers_of(c);
  Workbench bench(context, variation);
  if (!bench.begin(table, query_of(c, context.device))) return bench.finish();

  Operand &q = bench.input("q", n.q), &k = bench.input("k", n.k), &v = bench.input("v", n.v);
  const auto starts = [&](std::string name, std::vector<int64_t> lengths) -> Operand& {
    const at::Tensor content = cumulative(lengths, c.spare_segments);
    std::ranges::reverse(lengths);
    return bench.input(std::move(name), content, Rows::contiguous, cumulative(lengths, c.spare_segments));
  };
  Operand &cu_q = starts("cu_seqlens_q", c.lengths_q), &cu_kv = starts("cu_seqlens_kv", c.kv());
  Operand *positions_q = nullptr, *positions_kv = nullptr;
  if (c.rotary_dim > 0) {
    positions_q = &bench.input("positions_q", positions(c.lengths_q, c.tokens_q(), c.first_position), Rows::contiguous);
    positions_kv = &bench.input("positions_kv", positions(c.kv(), c.tokens_kv()), Rows::contiguous);
  }
  Operand& out = bench.output("out", n.q.sizes(), c.dtype);
  auto saved = c.backward ? bench.saved("saved") : std::vector<Operand*>{};

  fvlm_attention_forward forward{};
  forward.q = q.abi(), forward.k = k.abi(), forward.v = v.abi();
  forward.cu_seqlens_q = cu_q.abi(), forward.cu_seqlens_kv = cu_kv.abi();
  forward.positions_q = abi_of(positions_q), forward.positions_kv = abi_of(positions_kv);
  forward.out = out.abi();
  for (size_t i = 0; i < saved.size(); ++i) forward.saved[i] = saved[i]->abi();
  bench.call("forward", bench.required().forward_workspace, table.forward, forward);
  if (!c.backward || !bench.can_continue()) return bench.finish();

  fvlm_attention_backward backward{};
  backward.q = q.abi(), backward.k = k.abi(), backward.v = v.abi();
  backward.cu_seqlens_q = cu_q.abi(), backward.cu_seqlens_kv = cu_kv.abi();
  backward.positions_q = forward.positions_q, backward.positions_kv = forward.positions_kv;
  backward.out = out.abi();
  backward.d_out = bench.input("d_out", n.d_out).abi();
  for (size_t i = 0; i < saved.size(); ++i) backward.saved[i] = saved[i]->abi();
  if (!c.extra_queries.empty()) {
    backward.guest_q = bench.input("guest_q", n.guest_q).abi();
    backward.guest_d_out = bench.input("guest_d_out", n.guest_d_out).abi();
    backward.guest_cu_seqlens = starts("guest_cu_seqlens", c.extra_queries).abi();
  }
  backward.d_q = bench.output("d_q", n.q.sizes(), c.dtype).abi();
  if (!c.dq_only) {
    backward.d_k = bench.output("d_k", n.k.sizes(), c.dtype).abi();
    backward.d_v = bench.output("d_v", n.v.sizes(), c.dtype).abi();
  }
  bench.call("backward", bench.required().backward_workspace, table.backward, backward);
  return bench.finish();
}

std::string lengths_text(const std::vector<int64_t>& lengths) {
  if (lengths.size() > 8) return fmt::format("{} segments of up to {}", lengths.size(), longest(lengths));
  return fmt::format("segments {}", fmt::join(lengths, " "));
}

std::string label(const AttentionCase& c) {
  std::string text = fmt::format("{}{}, {}:{} heads of {}, {}", name_of(c.dtype), c.causal ? " causal" : "", c.heads_q,
                                 c.heads_kv, c.head_dim, lengths_text(c.lengths_q));
  if (!c.lengths_kv.empty()) text += " on keys " + lengths_text(c.lengths_kv).substr(9);
  if (c.padding_q + c.padding_kv > 0) text += fmt::format(", {} and {} padding rows", c.padding_q, c.padding_kv);
  if (c.rotary_dim > 0) text += fmt::format(", rotary_dim {}", c.rotary_dim);
  if (c.first_position > 0) text += fmt::format(", positions from {}", c.first_position);
  if (!c.extra_queries.empty()) text += fmt::format(", extra queries {}", fmt::join(c.extra_queries, " "));
  if (c.window > 0) text += fmt::format(", windows of {}", c.window);
  if (c.dq_only) text += ", d_q alone";
  return text;
}

} // namespace

int64_t AttentionCase::tokens_q() const {
  return sum(lengths_q) + padding_q;
}
int64_t AttentionCase::tokens_kv() const {
  return sum(kv()) + padding_kv;
}

Trial attention_trial(const AttentionCase& c) {
  Trial trial;
  trial.label = label(c);
  trial.supports = [c](Context& context) {
    fvlm_attention_query query = query_of(c, context.device);
    const auto& table = context.table<fvlm_attention_v1>();
    if (query.window > 0 && (table.base.struct_size < sizeof table || !(table.features & FVLM_ATTENTION_WINDOWS)))
      return fvlm_support{sizeof(fvlm_support), 0, "features lacks FVLM_ATTENTION_WINDOWS"};
    return query_support(table.supports, query);
  };
  trial.run = [c](Context& context, const Variation& variation) { return run(context, c, variation); };
  trial.expect = once([c] { return expect(c); });
  return trial;
}

std::vector<Trial> attention_cases(const std::vector<AttentionCase>& cases) {
  return trials_of(cases, attention_trial);
}

at::ScalarType attention_dtype(Context& context) {
  return first_supported_dtype(context, [](auto dtype) { return attention_trial({.dtype = dtype}); });
}

std::vector<Trial> attention_trials(Context& context) {
  const auto dtype = attention_dtype(context);
  return attention_cases({{.dtype = dtype},
                          {.dtype = dtype, .causal = true, .lengths_q = {33, 2, 70}},
                          {.dtype = dtype, .heads_q = 4, .heads_kv = 2, .head_dim = 32, .lengths_q = {8, 12}}});
}

std::vector<Trial> attention_odd_trials(Context& context) {
  const auto dtype = attention_dtype(context);
  return attention_cases(
      {{.dtype = dtype, .heads_q = 3, .heads_kv = 1, .head_dim = 13, .lengths_q = {5, 1, 11}},
       {.dtype = dtype, .causal = true, .heads_q = 1, .heads_kv = 1, .head_dim = 7, .lengths_q = {19}},
       {.dtype = dtype, .heads_q = 3, .heads_kv = 3, .head_dim = 36, .lengths_q = {3, 21}, .lengths_kv = {17, 5}}});
}

std::vector<Trial> attention_parallel_trials(Context& context) {
  const auto dtype = attention_dtype(context);
  return attention_cases(
      {{.dtype = dtype, .heads_q = 6, .heads_kv = 2, .head_dim = 32, .lengths_q = {130, 33, 0, 70}},
       {.dtype = dtype, .causal = true, .heads_q = 15, .heads_kv = 5, .head_dim = 16, .lengths_q = {60, 1, 90}}});
}

std::vector<Trial> attention_sweep(Context&) {
  std::vector<AttentionCase> cases;
  for (auto dtype : floating)
    for (bool causal : {false, true})
      for (int head_dim : {1, 8, 33, 64, 80, 128, 256})
        cases.push_back({.dtype = dtype,
                         .causal = causal,
                         .heads_q = 3,
                         .heads_kv = head_dim % 2 ? 3 : 1,
                         .head_dim = head_dim,
                         .lengths_q = {7, 3}});
  for (int rotary : {2, 16, 64}) cases.push_back({.rotary_dim = rotary});
  cases.push_back({.head_dim = 512});
  cases.push_back({.lengths_q = {5, 6}, .lengths_kv = {9, 3}});
  cases.push_back({.causal = true, .lengths_q = {5, 6}, .lengths_kv = {9, 3}});
  cases.push_back({.backward = false});
  return attention_cases(cases);
}

} // namespace fvlm::check
