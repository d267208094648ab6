#include "ops/attention.h"
#include "ops/reference/attention.h"
#include "tools.h"

#include <ATen/ops/concat.h>
#include <ATen/ops/eye.h>
#include <ATen/ops/full_like.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>

#include <gmock/gmock.h>

using namespace fvlm;
using namespace fvlm::ops;
using at::Tensor;

namespace {

struct Case {
  std::string name;
  std::vector<int32_t> q_lengths, kv_lengths;
  int heads_q, heads_kv, dim;
  bool causal;
  int rotary_dim;
  int64_t padding_q, padding_kv;
};
void PrintTo(const Case& c, std::ostream* out) {
  *out << c.name;
}

// Packed float64 inputs with NaN in their padding rows.
struct Problem {
  Tensor q, k, v, d_out;
  Packing packing;
  fvlm_attention_query query{};
};

Tensor bounds(const std::vector<int32_t>& lengths) {
  std::vector<int32_t> cu = {0};
  for (int32_t length : lengths) cu.push_back(cu.back() + length);
  return at::tensor(cu, at::kInt);
}

Tensor positions(const std::vector<int32_t>& lengths, int64_t padding) {
  std::vector<int32_t> all;
  for (int32_t length : lengths)
    for (int32_t row = 0; row < length; ++row) all.push_back(row + 3);
  all.insert(all.end(), padding, -7);
  return at::tensor(all, at::kInt);
}

Problem make_problem(const Case& c) {
  Problem p;
  p.packing = {bounds(c.q_lengths), bounds(c.kv_lengths), positions(c.q_lengths, c.padding_q),
               positions(c.kv_lengths, c.padding_kv)};
  const int64_t used_q = p.packing.cu_seqlens_q[-1].item<int>(), used_kv = p.packing.cu_seqlens_kv[-1].item<int>();
  const int64_t rows_q = used_q + c.padding_q, rows_kv = used_kv + c.padding_kv;
  p.q = random({rows_q, c.heads_q, c.dim}, 1);
  p.k = random({rows_kv, c.heads_kv, c.dim}, 2);
  p.v = random({rows_kv, c.heads_kv, c.dim}, 3);
  p.d_out = random({rows_q, c.heads_q, c.dim}, 4);
  p.q.narrow(0, used_q, c.padding_q).fill_(std::nan(""));
  p.d_out.narrow(0, used_q, c.padding_q).fill_(std::nan(""));
  p.k.narrow(0, used_kv, c.padding_kv).fill_(std::nan(""));
  p.v.narrow(0, used_kv, c.padding_kv).fill_(std::nan(""));
  p.query = {.causal = c.causal,
             .dtype = abi_dtype(at::kDouble),
             .heads_q = c.heads_q,
             .heads_kv = c.heads_kv,
             .head_dim = c.dim,
             .max_seqlen_q = c.q_lengths.empty() ? 0 : *std::ranges::max_element(c.q_lengths),
             .max_seqlen_kv = c.kv_lengths.empty() ? 0 : *std::ranges::max_element(c.kv_lengths),
             .rotary_dim = c.rotary_dim,
             .tokens_q = rows_q,
             .tokens_kv = rows_kv,
             .segments = static_cast<int64_t>(c.q_lengths.size()),
             .scale = 0.375f,
             .rope_theta = 100.0f,
             .needs_backward = 1};
  return p;
}

// Rotary embedding of x [rows, dim] by one rotation matrix for each row, from the definition.
Tensor rotate(const Tensor& x, const Tensor& positions, int rotary_dim, double theta) {
  if (rotary_dim == 0) return x;
  const int half = rotary_dim / 2;
  const int64_t dim = x.size(1);
  const Tensor matrices = at::eye(dim, at::kDouble).repeat({x.size(0), 1, 1});
  for (int64_t row = 0; row < x.size(0); ++row)
    for (int64_t i = 0; i < half; ++i) {
      const double angle =
          positions[row].item<int>() * std::pow(theta, -2.0 * static_cast<double>(i) / static_cast<double>(rotary_dim));
      const Tensor one = matrices[row];
      auto matrix = one.accessor<double, 2>();
      matrix[i][i] = matrix[i + half][i + half] = std::cos(angle);
      matrix[i][i + half] = -std::sin(angle);
      matrix[i + half][i] = std::sin(angle);
    }
  return at::matmul(matrices, x.unsqueeze(2)).squeeze(2);
}

// The definition, one segment and head at a time, differentiated by autograd.
Tensor attend(const Case& c, const Problem& p, const Tensor& q, const Tensor& k, const Tensor& v) {
  std::vector<Tensor> segments;
  int64_t q_begin = 0, kv_begin = 0;
  for (size_t s = 0; s < c.q_lengths.size(); ++s) {
    const int64_t q_length = c.q_lengths[s], kv_length = c.kv_lengths[s];
    const Tensor visible = at::zeros({q_length, kv_length}, at::kDouble);
    for (int64_t i = 0; i < q_length; ++i)
      for (int64_t j = 0; j < kv_length; ++j) visible[i][j] = !c.causal || j <= i + kv_length - q_length ? 1 : 0;
    std::vector<Tensor> heads;
    for (int64_t h = 0; h < c.heads_q; ++h) {
      const auto part = [&](const Tensor& x, int64_t head, int64_t begin, int64_t length) {
        return x.select(1, head).narrow(0, begin, length);
      };
      const int64_t kv_head = h / (c.heads_q / c.heads_kv);
      const Tensor query = rotate(part(q, h, q_begin, q_length), p.packing.positions_q.narrow(0, q_begin, q_length),
                                  c.rotary_dim, p.query.rope_theta);
      const Tensor key =
          rotate(part(k, kv_head, kv_begin, kv_length), p.packing.positions_kv.narrow(0, kv_begin, kv_length),
                 c.rotary_dim, p.query.rope_theta);
      const Tensor weights = at::matmul(query, key.t()).mul(static_cast<double>(p.query.scale)).exp() * visible;
      const Tensor sums = weights.sum(1, true);
      // A fully masked row has a sum of 0, and its output is 0.
      heads.push_back(at::matmul(weights, part(v, kv_head, kv_begin, kv_length)) / at::where(sums.eq(0), 1, sums));
    }
    segments.push_back(at::stack(heads, 1));
    q_begin += q_length;
    kv_begin += kv_length;
  }
  segments.push_back(at::zeros({c.padding_q, c.heads_q, c.dim}, at::kDouble));
  return at::concat(segments);
}

struct Expected {
  Tensor out, d_q, d_k, d_v;
};
Expected expected(const Case& c, const Problem& p) {
  const Tensor q = leaf(p.q.nan_to_num()), k = leaf(p.k.nan_to_num()), v = leaf(p.v.nan_to_num());
  const Tensor out = attend(c, p, q, k, v);
  const auto gradient = [](const Tensor& x) { return x.grad().defined() ? x.grad() : at::zeros_like(x); };
  if (out.requires_grad()) out.backward(p.d_out.nan_to_num());
  return {out.detach(), gradient(q), gradient(k), gradient(v)};
}

const Case cases[] = {
    {"one_token", {1}, {1}, 1, 1, 4, false, 0, 0, 0},
    {"one_segment", {5}, {5}, 2, 2, 4, false, 0, 0, 0},
    {"causal", {5, 3}, {5, 3}, 2, 2, 4, true, 0, 0, 0},
    {"grouped_heads", {4, 2}, {4, 2}, 6, 2, 3, true, 0, 1, 1},
    {"odd_heads_share_one_key", {3, 4}, {3, 4}, 5, 1, 7, false, 0, 0, 2},
    {"fewer_queries_than_keys", {2, 1}, {5, 4}, 2, 1, 4, true, 0, 0, 0},
    {"more_queries_than_keys_leaves_blind_rows", {5, 4}, {2, 4}, 2, 1, 4, true, 0, 3, 0},
    {"empty_segments", {0, 3, 0, 2, 0}, {2, 3, 0, 0, 0}, 2, 1, 4, true, 0, 2, 3},
    {"queries_without_keys", {3, 2}, {0, 2}, 1, 1, 4, false, 0, 1, 0},
    {"all_padding", {0, 0}, {0, 0}, 2, 2, 4, true, 0, 4, 3},
    {"no_rows_at_all", {0}, {0}, 2, 2, 4, false, 0, 0, 0},
    {"no_segments", {}, {}, 2, 2, 4, false, 0, 2, 2},
    {"rotary", {4, 3}, {4, 3}, 2, 2, 8, true, 8, 2, 2},
    {"partial_rotary_grouped", {3, 3}, {5, 3}, 4, 2, 8, true, 4, 1, 1},
};

class Attentions : public testing::TestWithParam<Case> {};

} // namespace

TEST_P(Attentions, ForwardAndBackwardFollowTheDefinition) {
  const Case& c = GetParam();
  const Problem p = make_problem(c);
  const Expected want = expected(c, p);
  const Attention attention(reference_backend<fvlm_attention_v1>(FVLM_ATTENTION_KIND), p.query);
  const auto output = attention.forward(p.q, p.k, p.v, p.packing);
  const auto gradients = attention.backward(p.q, p.k, p.v, p.packing, output, p.d_out);
  expect_close(output.out, want.out, 1e-12, "out");
  expect_close(gradients.q, want.d_q, 1e-12, "d_q");
  expect_close(gradients.k, want.d_k, 1e-12, "d_k");
  expect_close(gradients.v, want.d_v, 1e-12, "d_v");
}

TEST_P(Attentions, DevicePathGivesTheSameNumbers) {
  const Case& c = GetParam();
  if (c.rotary_dim) return; // applied before the two methods differ
  const Problem p = make_problem(c);
  const Expected want = expected(c, p);
  const reference::AttentionShape shape{p.packing.cu_seqlens_q, p.packing.cu_seqlens_kv, p.query.scale, c.causal};
  expect_close(reference::attention_by_mask(shape, p.q, p.k, p.v), want.out, 1e-12, "out");
  const auto [d_q, d_k, d_v] = reference::attention_gradients_by_mask(shape, p.q, p.k, p.v, p.d_out);
  expect_close(d_q, want.d_q, 1e-12, "d_q");
  expect_close(d_k, want.d_k, 1e-12, "d_k");
  expect_close(d_v, want.d_v, 1e-12, "d_v");
}

TEST_P(Attentions, LowPrecisionRoundsResultsNotSums) {
  const Case& c = GetParam();
  const Problem exact = make_problem(c);
  for (const auto& [type, tolerance] : {std::pair{at::kFloat, 5e-6}, {at::kBFloat16, 8e-3}, {at::kHalf, 1e-3}}) {
    Problem p = exact;
    p.query.dtype = abi_dtype(type);
    for (Tensor* x : {&p.q, &p.k, &p.v, &p.d_out}) *x = x->to(type);
    const Expected want = expected(c, p);
    const Attention attention(reference_backend<fvlm_attention_v1>(FVLM_ATTENTION_KIND), p.query);
    const auto output = attention.forward(p.q, p.k, p.v, p.packing);
    const auto gradients = attention.backward(p.q, p.k, p.v, p.packing, output, p.d_out);
    EXPECT_EQ(output.out.scalar_type(), type);
    expect_close(output.out, want.out, tolerance, std::string("out ") + c10::toString(type));
    expect_close(gradients.q, want.d_q, tolerance, std::string("d_q ") + c10::toString(type));
    expect_close(gradients.k, want.d_k, tolerance, std::string("d_k ") + c10::toString(type));
    expect_close(gradients.v, want.d_v, tolerance, std::string("d_v ") + c10::toString(type));
  }
}

INSTANTIATE_TEST_SUITE_P(Reference, Attentions, testing::ValuesIn(cases), testing::PrintToStringParamName());

TEST(Attention, TakesViewsOfOneBuffer) {
  const Case c{"", {4, 3}, {4, 3}, 4, 2, 8, true, 4, 1, 1};
  Problem p = make_problem(c);
  const Attention attention(reference_backend<fvlm_attention_v1>(FVLM_ATTENTION_KIND), p.query);
  const auto dense = attention.forward(p.q, p.k, p.v, p.packing);
  const auto dense_gradients = attention.backward(p.q, p.k, p.v, p.packing, dense, p.d_out);

  const Tensor buffer = at::concat({p.q, p.k, p.v}, 1);
  const auto part = [](const Tensor& whole, int index) {
    return whole.narrow(1, index == 0 ? 0 : 2 + 2 * index, index == 0 ? 4 : 2);
  };
  const Tensor gradient_buffer = at::full_like(buffer, 17);
  const auto output = attention.forward(part(buffer, 0), part(buffer, 1), part(buffer, 2), p.packing);
  const auto gradients =
      attention.backward(part(buffer, 0), part(buffer, 1), part(buffer, 2), p.packing, output, p.d_out,
                         {part(gradient_buffer, 0), part(gradient_buffer, 1), part(gradient_buffer, 2)});
  expect_same_bits(output.out, dense.out, "out");
  expect_same_bits(gradient_buffer, at::concat({dense_gradients.q, dense_gradients.k, dense_gradients.v}, 1),
                   "gradients");
  EXPECT_EQ(gradients.q.data_ptr(), gradient_buffer.data_ptr());
}

TEST(Attention, GradientsMatchFiniteDifferences) {
  const Case c{"", {3, 2}, {4, 2}, 2, 1, 4, true, 2, 0, 0};
  const Problem p = make_problem(c);
  const Attention attention(reference_backend<fvlm_attention_v1>(FVLM_ATTENTION_KIND), p.query);
  const auto loss = [&] { return (attention.forward(p.q, p.k, p.v, p.packing).out * p.d_out).sum().item<double>(); };
  const auto gradients =
      attention.backward(p.q, p.k, p.v, p.packing, attention.forward(p.q, p.k, p.v, p.packing), p.d_out);
  const std::tuple<const char*, Tensor, Tensor> pairs[] = {
      {"q", p.q, gradients.q}, {"k", p.k, gradients.k}, {"v", p.v, gradients.v}};
  for (const auto& [name, input, gradient] : pairs)
    for (int64_t element = 0; element < input.numel(); ++element)
      EXPECT_NEAR(gradient.reshape({-1})[element].item<double>(), difference(input, element, loss), 1e-8)
          << name << " element " << element;
}

TEST(Attention, RecordsNothingForAutograd) {
  const Case c{"", {3}, {3}, 1, 1, 4, true, 0, 0, 0};
  const Problem p = make_problem(c);
  const Attention attention(reference_backend<fvlm_attention_v1>(FVLM_ATTENTION_KIND), p.query);
  const Tensor q = p.q.clone().set_requires_grad(true);
  const auto output = attention.forward(q, p.k, p.v, p.packing);
  EXPECT_FALSE(output.out.requires_grad());
  EXPECT_FALSE(attention.backward(q, p.k, p.v, p.packing, output, p.d_out).k.requires_grad());
}

TEST(Attention, RefusesUnsupportedProblemsWithAReason) {
  using testing::HasSubstr;
  const auto refusal = [](auto change) {
    Problem p = make_problem({"", {3}, {3}, 4, 2, 8, true, 0, 0, 0});
    change(p.query);
    try {
      Attention attention(reference_backend<fvlm_attention_v1>(FVLM_ATTENTION_KIND), p.query);
    } catch (const Error& error) {
      return error.text();
    }
    return std::string("not refused");
  };
  EXPECT_EQ(refusal([](auto&) {}), "not refused");
  EXPECT_THAT(refusal([](auto& query) { query.heads_kv = 3; }), HasSubstr("4 query heads over 3 key heads"));
  EXPECT_THAT(refusal([](auto& query) { query.heads_kv = 0; }), HasSubstr("0 key heads"));
  EXPECT_THAT(refusal([](auto& query) { query.rotary_dim = 10; }), HasSubstr("rotary_dim 10"));
  EXPECT_THAT(refusal([](auto& query) { query.rotary_dim = 3; }), HasSubstr("rotary_dim 3"));
  EXPECT_THAT(refusal([](auto& query) { query.dtype = abi_dtype(at::kInt); }), HasSubstr("dtype int32"));
}
