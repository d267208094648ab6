// Attention of rows in blocks that attend to each other, by two calls of a plugin: beside a softmax with their mask.
#include "../ops/tools.h"
#include "model/bidirectional_blocks.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/logical_and.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/tensor.h>
#include <c10/core/InferenceMode.h>

#include <algorithm>
#include <memory>
#include <numeric>

using namespace fvlm;
using namespace fvlm::ops;
using at::Tensor;

namespace {

constexpr int64_t tokens = 90, heads_q = 4, heads_kv = 2, dim = 6;
constexpr double scale = 0.4;
const std::vector<int32_t> bounds{0, 50, 51, 51, 84}; // one text is a row, one is empty, and six rows are padding

// Blocks at the beginning of a text, next to each other, of two rows, and at the end.
std::vector<int32_t> last_rows() {
  std::vector<int32_t> last(tokens);
  std::iota(last.begin(), last.end(), 0);
  for (const auto& [first, end] : {std::pair(0, 15), {16, 20}, {40, 41}, {70, 83}})
    std::fill(last.begin() + first, last.begin() + end, end);
  return last;
}

void expect_numbers(const Tensor& found, const std::vector<int64_t>& right, const char* what) {
  expect_same_bits(found.to(at::kLong), at::tensor(right), what);
}

TEST(BidirectionalBlocks, RowsInReverseAndTheirPlaces) {
  const auto blocks = model::bidirectional_blocks(std::vector<int32_t>{0, 3, 3, 3, 4, 6, 6}, 6, at::kCPU);
  expect_numbers(blocks.rows, {3, 2, 1, 6, 5, 0, 0, 0, 0, 0, 0, 0, 0, 0}, "rows");
  expect_numbers(blocks.keys, {3, 2, 6, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}, "keys");
  expect_numbers(blocks.cu_seqlens_q, {0, 3, 5}, "cu_seqlens_q");
  expect_numbers(blocks.cu_seqlens_kv, {0, 2, 3}, "cu_seqlens_kv");
  expect_numbers(blocks.place, {13, 2, 1, 0, 13, 4, 3}, "place");
  expect_numbers(blocks.key_place, {13, 13, 1, 0, 13, 13, 2}, "key_place");
  EXPECT_EQ(blocks.max_length, 64);
}

TEST(BidirectionalBlocks, PacksWithoutBlocks) {
  const auto blocks = model::bidirectional_blocks(std::vector<int32_t>{0, 1, 2}, 4, at::kCPU);
  EXPECT_EQ(blocks.rows.size(0), 12);
  expect_numbers(blocks.cu_seqlens_q, {0, 0}, "cu_seqlens_q");
  expect_numbers(blocks.place, {11, 11, 11}, "place");
}

Tensor visible_keys(int64_t window) {
  const Tensor row = at::arange(tokens), last = at::tensor(last_rows());
  std::vector<int64_t> segment(tokens, -1);
  for (size_t s = 0; s + 1 < bounds.size(); ++s)
    std::fill(segment.begin() + bounds[s], segment.begin() + bounds[s + 1], static_cast<int64_t>(s));
  const Tensor of = at::tensor(segment), back = row.unsqueeze(1) - row;
  Tensor visible = of.unsqueeze(1).eq(of).logical_and(row.unsqueeze(0).le(last.unsqueeze(1)));
  return window > 0 ? visible.logical_and(back.lt(window)) : visible;
}

Tensor by_mask(const Tensor& visible, const Tensor& q, const Tensor& k, const Tensor& v) {
  const auto by_head = [](const Tensor& x) { return x.repeat_interleave(heads_q / x.size(1), 1).transpose(0, 1); };
  const Tensor scores = at::matmul(by_head(q), by_head(k).transpose(1, 2)) * scale;
  return at::matmul(at::softmax(scores.masked_fill(visible.logical_not(), -INFINITY), 2), by_head(v)).transpose(0, 1);
}

void expect_masked_softmax(int64_t window) {
  const int64_t used = bounds.back();
  const auto draw = [](int64_t heads, uint64_t seed) {
    Tensor x = random({tokens, heads, dim}, seed);
    x.narrow(0, bounds.back(), tokens - bounds.back()).fill_(NAN);
    return x;
  };
  const Tensor q = draw(heads_q, 1), k = draw(heads_kv, 2), v = draw(heads_kv, 3), d_out = draw(heads_q, 4);
  const auto of_texts = [used](const Tensor& x) { return leaf(x.narrow(0, 0, used)); };
  const Tensor own_q = of_texts(q), own_k = of_texts(k), own_v = of_texts(v),
               right = by_mask(visible_keys(window).narrow(0, 0, used).narrow(1, 0, used), own_q, own_k, own_v);
  right.backward(d_out.narrow(0, 0, used));

  const c10::InferenceMode no_autograd;
  fvlm_attention_query query{};
  query.struct_size = sizeof query;
  query.causal = 1;
  query.dtype = {FVLM_FLOAT, 64, 1};
  query.heads_q = heads_q, query.heads_kv = heads_kv, query.head_dim = dim;
  query.max_seqlen_q = query.max_seqlen_kv = 50;
  query.tokens_q = query.tokens_kv = tokens;
  query.segments = std::ssize(bounds) - 1;
  query.scale = static_cast<float>(scale);
  query.window = static_cast<int32_t>(window);
  std::vector<std::unique_ptr<Attention>> calls;
  const BidirectionalAttention attention(query, model::bidirectional_blocks(last_rows(), 40, at::kCPU),
                                         [&](const fvlm_attention_query& part) -> const Attention& {
                                           return *calls.emplace_back(std::make_unique<Attention>(
                                               reference_backend<fvlm_attention_v1>("fvlm.attention/1"), part));
                                         });
  EXPECT_EQ(calls.size(), 2u);
  EXPECT_FALSE(attention.has_plugins());
  const Tensor cu = at::tensor(bounds, at::kInt);
  const Packing packing{cu, cu, {}, {}};
  const auto output = attention.forward(q, k, v, packing);
  const Attention::Gradients d{random(q.sizes(), 5), random(k.sizes(), 6), random(v.sizes(), 7)};
  attention.backward(q, k, v, packing, output, d_out, d);
  const auto expect = [used](const Tensor& found, const Tensor& expected, const char* what) {
    expect_close(found.narrow(0, 0, used), expected, 1e-6, what); // the scale of a query is a float
    EXPECT_EQ(found.narrow(0, used, tokens - used).abs().max().item<double>(), 0) << what << ", padding";
  };
  expect(output.out, right, "out");
  expect(d.q, own_q.grad(), "d_q");
  expect(d.k, own_k.grad(), "d_k");
  expect(d.v, own_v.grad(), "d_v");
}

TEST(BidirectionalAttention, IsASoftmaxWithItsMask) {
  expect_masked_softmax(0);
}

TEST(BidirectionalAttention, InWindowsThatHideWhatIsBeforeARowAlone) {
  expect_masked_softmax(9);
}

} // namespace
