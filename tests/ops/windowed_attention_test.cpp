// Rows that attend to a range of rows, those of a sliding window and some behind them: both methods of packed
// attention, and attention over pages, beside their definition.
#include "ops/reference/attention.h"
#include "tools.h"

#include <ATen/ops/einsum.h>
#include <ATen/ops/repeat_interleave.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <c10/core/InferenceMode.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <tuple>

namespace fvlm::ops {
namespace {

using at::Tensor;

constexpr int64_t heads_q = 4, heads_kv = 2, dim = 6;
constexpr double scale = 0.4;
// Longer than the rows that are computed together, shorter than a window, empty, and rows of padding behind them.
const std::vector<int32_t> bounds{0, 300, 301, 301, 560};
constexpr int64_t tokens = 600;

// Rows that attend to the last of them: at the beginning of a segment, within one window, across the parts that are
// computed together, and at the end.
const std::vector<std::pair<int32_t, int32_t>> mutual{{0, 15}, {60, 64}, {250, 299}, {301, 330}, {540, 559}};

Tensor last_rows() {
  std::vector<int32_t> last(tokens);
  std::iota(last.begin(), last.end(), 0);
  for (const auto& [first, end] : mutual) std::fill(last.begin() + first, last.begin() + end, end);
  return at::tensor(last, at::kInt);
}

// The same rows attend to each other, and those behind them to no more than without.
Tensor first_rows() {
  std::vector<int32_t> first(tokens);
  std::iota(first.begin(), first.end(), 0);
  for (const auto& [begin, end] : mutual) std::fill(first.begin() + begin, first.begin() + end + 1, begin);
  return at::tensor(first, at::kInt);
}

struct Problem {
  Tensor q, k, v, d_out;
  reference::AttentionShape shape{at::tensor(bounds, at::kInt), at::tensor(bounds, at::kInt), scale, true};

  Problem(int64_t window, const Tensor& last, double softcap = 0) {
    shape.window = window, shape.last = last, shape.softcap = softcap;
    at::manual_seed(3);
    const auto draw = [](int64_t heads) { return at::randn({tokens, heads, dim}, at::kDouble); };
    q = draw(heads_q), k = draw(heads_kv), v = draw(heads_kv), d_out = draw(heads_q);
    for (Tensor* each : {&q, &k, &v, &d_out}) each->narrow(0, bounds.back(), tokens - bounds.back()).fill_(NAN);
  }
};

// Row by row, so that autograd finds the gradients.
Tensor by_definition(const reference::AttentionShape& shape, const Tensor& q, const Tensor& k, const Tensor& v) {
  std::vector<Tensor> rows;
  for (size_t s = 0; s + 1 < bounds.size(); ++s)
    for (int64_t row = bounds[s]; row < bounds[s + 1]; ++row) {
      int64_t first = shape.window > 0 ? std::max<int64_t>(bounds[s], row - shape.window + 1) : bounds[s];
      if (shape.first.defined()) first = std::min<int64_t>(first, shape.first[row].item<int32_t>());
      const int64_t last = shape.last.defined() ? shape.last[row].item<int32_t>() : row, count = last + 1 - first;
      const auto keys = [&](const Tensor& x) {
        return x.narrow(0, first, count).repeat_interleave(heads_q / heads_kv, 1);
      };
      const Tensor scores = at::einsum("hd,mhd->hm", {q[row] * scale, keys(k)}), cap = at::tensor(shape.softcap);
      const Tensor weights = at::softmax(shape.softcap > 0 ? (scores / cap).tanh() * cap : scores, 1);
      rows.push_back(at::einsum("hm,mhd->hd", {weights, keys(v)}));
    }
  return at::stack(rows);
}

void expect_both_methods_follow_the_definition(const Problem& p) {
  const int64_t used = bounds.back();
  const auto leaf = [&](const Tensor& x) { return x.narrow(0, 0, used).clone().requires_grad_(); };
  const Tensor q = leaf(p.q), k = leaf(p.k), v = leaf(p.v), out = by_definition(p.shape, q, k, v);
  out.backward(p.d_out.narrow(0, 0, used));
  const c10::InferenceMode no_autograd;
  struct Method {
    const char* name;
    decltype(&reference::attention_by_mask) forward;
    decltype(&reference::attention_gradients_by_mask) backward;
  };
  for (const Method& method :
       {Method{"by mask", reference::attention_by_mask, reference::attention_gradients_by_mask},
        Method{"by segment", reference::attention_by_segment, reference::attention_gradients_by_segment}}) {
    SCOPED_TRACE(method.name);
    const auto expect_rows = [&](const Tensor& found, const Tensor& right, const char* what) {
      expect_close(found.narrow(0, 0, used), right, 1e-12, what);
      EXPECT_EQ(found.narrow(0, used, tokens - used).abs().max().item<double>(), 0) << what << ", padding";
    };
    expect_rows(method.forward(p.shape, p.q, p.k, p.v, {}), out, "out");
    const auto [d_q, d_k, d_v] = method.backward(p.shape, p.q, p.k, p.v, p.d_out, {});
    expect_rows(d_q, q.grad(), "d_q");
    expect_rows(d_k, k.grad(), "d_k");
    expect_rows(d_v, v.grad(), "d_v");
  }
}

TEST(WindowedAttention, BothMethodsFollowTheDefinition) {
  expect_both_methods_follow_the_definition(Problem(20, {}));
}

TEST(WindowedAttention, RowsThatAttendToRowsBehindThem) {
  expect_both_methods_follow_the_definition(Problem(0, last_rows()));
  expect_both_methods_follow_the_definition(Problem(20, last_rows()));
}

// As those of a prompt that a window does not divide, some of them more than a window apart.
TEST(WindowedAttention, RowsThatAttendToRowsBeforeTheirWindow) {
  Problem p(20, last_rows());
  p.shape.first = first_rows();
  expect_both_methods_follow_the_definition(p);
  p.shape.longest = 300;
  expect_both_methods_follow_the_definition(p);
}

// Knowing the longest segment, rows are computed in parts that end before the buffer does.
TEST(WindowedAttention, RowsInParts) {
  for (const auto& [window, last, softcap] :
       {std::tuple<int64_t, Tensor, double>{0, {}, 1.5}, {0, last_rows(), 0}, {20, last_rows(), 0.7}}) {
    Problem p(window, last, softcap);
    p.shape.longest = 300;
    expect_both_methods_follow_the_definition(p);
  }
}

void expect_window_over_pages(const Tensor& q, const PagedKeys& keys, const std::vector<int32_t>& pages,
                              const std::vector<int32_t>& positions, const std::vector<int32_t>& lengths,
                              int64_t window, const Tensor& out) {
  const int64_t page_rows = keys.k_pages.size(1);
  for (int64_t row = 0; row < q.size(0); ++row) {
    std::vector<Tensor> own_keys, own_values;
    int64_t first = std::max<int64_t>(0, positions[static_cast<size_t>(row)] - window + 1);
    if (keys.first.defined()) first = std::min<int64_t>(first, keys.first[row].item<int32_t>());
    for (int64_t j = first; j < lengths[static_cast<size_t>(row)]; ++j) {
      const int32_t page = pages[static_cast<size_t>(j / page_rows)];
      own_keys.push_back(keys.k_pages[page][j % page_rows].repeat_interleave(heads_q / heads_kv, 0));
      own_values.push_back(keys.v_pages[page][j % page_rows].repeat_interleave(heads_q / heads_kv, 0));
    }
    if (own_keys.empty()) {
      EXPECT_EQ(out[row].abs().max().item<double>(), 0) << "padding";
      continue;
    }
    const Tensor weights = at::softmax(at::einsum("hd,mhd->hm", {q[row] * scale, at::stack(own_keys)}), 1);
    expect_close(out[row], at::einsum("hm,mhd->hd", {weights, at::stack(own_values)}), 1e-12, "row");
  }
}

TEST(WindowedAttention, ScoresThatAreBounded) {
  expect_both_methods_follow_the_definition(Problem(0, {}, 1.5));
  expect_both_methods_follow_the_definition(Problem(20, last_rows(), 0.7));
}

// The rows of a sequence in pages, some of them more than a window behind the first, and rows of padding.
TEST(WindowedAttention, OverPages) {
  at::manual_seed(5);
  constexpr int64_t page_rows = 4, own_window = 6;
  const std::vector<int32_t> pages{5, 0, 3, 6, 1}, positions{0, 3, 5, 6, 13, 18, 0}, own{1, 4, 6, 7, 14, 19, 0},
      ahead{1, 7, 7, 7, 19, 19, 0};
  const Tensor q = at::randn({std::ssize(positions), heads_q, dim}, at::kDouble),
               k_pages = at::randn({7, page_rows, heads_kv, dim}, at::kDouble),
               v_pages = at::randn(k_pages.sizes(), at::kDouble);
  k_pages[4].fill_(NAN), v_pages[1][3].fill_(NAN); // a page that no sequence has, and a row behind its end
  // The row 13 attends to all before it, whatever the window.
  const Tensor first = at::tensor({0, 3, 5, 6, 0, 18, 0}, at::kInt);
  for (const auto& [lengths, from] :
       {std::pair<std::vector<int32_t>, Tensor>{own, {}}, {ahead, {}}, {own, first}, {ahead, first}}) {
    const PagedKeys keys{k_pages,
                         v_pages,
                         at::tensor(pages, at::kInt).unsqueeze(0),
                         at::zeros({std::ssize(positions)}, at::kInt),
                         at::tensor(lengths, at::kInt),
                         lengths == ahead || from.defined(),
                         from};
    const Tensor out =
        reference::paged_attention_in_window(q, keys, at::tensor(positions, at::kInt), own_window, scale);
    expect_window_over_pages(q, keys, pages, positions, lengths, own_window, out);
  }
}

} // namespace
} // namespace fvlm::ops
