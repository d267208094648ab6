// What layers without attention are made of: the gated delta rule against its definition row by row, its gradients, and
// passes that go on where others ended; the convolution before it; gates.
#include "bench.h"
#include "ops/gates.h"

#include <ATen/ops/full.h>
#include <ATen/ops/outer.h>
#include <ATen/ops/softplus.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <fmt/format.h>

using namespace fvlm;
using namespace fvlm::ops;
using at::Tensor;

namespace {

constexpr int64_t key_heads = 2, value_heads = 4, key_dim = 3, value_dim = 5;
constexpr int64_t row_width = 2 * key_heads * key_dim + value_heads * value_dim;

DeltaRule rule_of(Bench& b) {
  return {key_heads,
          value_heads,
          key_dim,
          value_dim,
          Weight(b.parameter("log_decay", {value_heads})),
          Weight(b.parameter("step_bias", {value_heads}))};
}

Tensor bounds_of(std::vector<int> bounds) {
  return at::tensor(bounds, at::kInt);
}

Segments segments_of(const std::vector<int>& bounds, int64_t longest) {
  return {bounds_of(bounds), {}, longest};
}

// Two sequences with so many rows in a pass, in slots 2 and 0. One without rows names the other's slot and claims to
// start, which must not matter.
CarriedSequences sequences_of(std::array<int, 2> rows, std::array<bool, 2> starts) {
  const auto start = [&](size_t i) { return int{starts[i] || rows[i] == 0}; };
  return {bounds_of({0, rows[0], rows[0] + rows[1]}), at::tensor({rows[0] > 0 ? 2 : 0, rows[1] > 0 ? 0 : 2}, at::kInt),
          at::tensor({start(0), start(1)}, at::kInt), std::max({rows[0], rows[1], 1})};
}

// One head of rows [begin, end) by the definition.
Tensor by_definition(const Tensor& rows, const Tensor& gates, const DeltaRule& rule, int64_t head) {
  const int64_t of_key = head / (value_heads / key_heads);
  const auto unit = [](const Tensor& x) { return x * (x.square().sum() + 1e-6).rsqrt(); };
  Tensor state = at::zeros({key_dim, value_dim}, rows.options());
  std::vector<Tensor> out;
  for (int64_t row = 0; row < rows.size(0); ++row) {
    const Tensor q = unit(rows[row].narrow(0, of_key * key_dim, key_dim)) / std::sqrt(static_cast<double>(key_dim)),
                 k = unit(rows[row].narrow(0, (key_heads + of_key) * key_dim, key_dim)),
                 v = rows[row].narrow(0, 2 * key_heads * key_dim + head * value_dim, value_dim);
    const Tensor rate = gates[row][head].sigmoid(),
                 decay = -rule.log_decay.value()[head].exp() *
                         at::softplus(gates[row][value_heads + head] + rule.step_bias.value()[head]);
    state = state * decay.exp();
    state = state + at::outer(k, rate * (v - state.t().mv(k)));
    out.push_back(state.t().mv(q));
  }
  return at::stack(out);
}

} // namespace

TEST(DeltaRule, IsItsDefinitionInEachSegment) {
  Bench b;
  const std::vector<int> bounds{0, 1, 71, 71, 204}; // a row, less and more than two chunks, none; 2 rows of no segment
  const Value rows = b.input({206, row_width}), gates = b.input({206, 2 * value_heads});
  const DeltaRule rule = rule_of(b);
  Tape none(Tape::Mode::forward_only);
  const Tensor y = b.ops->gated_delta_rule(none, rows, gates, rule, segments_of(bounds, 133)).data;
  for (size_t i = 0; i + 1 < bounds.size(); ++i) {
    const int64_t begin = bounds[i], count = bounds[i + 1] - begin;
    for (int64_t head = 0; head < value_heads && count > 0; ++head)
      expect_close(y.narrow(0, begin, count).narrow(1, head * value_dim, value_dim),
                   by_definition(rows.data.narrow(0, begin, count), gates.data.narrow(0, begin, count), rule, head),
                   1e-10, fmt::format("head {} from row {}", head, begin));
  }
  EXPECT_EQ(y.narrow(0, 204, 2).abs().max().item<double>(), 0);
}

TEST(DeltaRule, HasItsGradients) {
  Bench b;
  const Value rows = b.input({9, row_width}), gates = b.input({9, 2 * value_heads});
  const DeltaRule rule = rule_of(b);
  for (const auto& [bounds, longest] : {std::pair<std::vector<int>, int>{{0, 1, 2, 3}, 1}, // chunks of 1, 8 and 16 rows
                                        {{0, 3, 3, 8}, 5},
                                        {{0, 9}, 9}}) {
    b.expect_true_gradients([&](Tape& tape) {
      return std::vector{b.ops->gated_delta_rule(tape, rows, gates, rule, segments_of(bounds, longest))};
    });
  }
}

TEST(DeltaRule, HasItsGradientsOverSeveralChunks) {
  Bench b;
  const Value rows = b.input({70, row_width}), gates = b.input({70, 2 * value_heads});
  const DeltaRule rule = rule_of(b);
  b.expect_true_gradients([&](Tape& tape) {
    return std::vector{b.ops->gated_delta_rule(tape, rows, gates, rule, segments_of({0, 2, 70}, 68))};
  });
}

// Two sequences, a few rows of each at a time; slots of states as generation has them.
TEST(DeltaRule, GoesOnWhereAPassEnded) {
  Bench b;
  const Value rows = b.input({90, row_width}), gates = b.input({90, 2 * value_heads});
  const DeltaRule rule = rule_of(b);
  Tape none(Tape::Mode::forward_only);
  const std::vector<int64_t> begins{0, 80};
  const Tensor expected = b.ops->gated_delta_rule(none, rows, gates, rule, segments_of({0, 80, 90}, 80)).data;
  const Tensor states = at::full({3, value_heads, key_dim, value_dim}, 7.0, rows.data.options());
  std::vector<int64_t> done{0, 0};
  for (const auto& [first, second] : {std::pair<int, int>{1, 0}, {1, 1}, {70, 3}, {0, 1}, {1, 1}, {7, 4}}) {
    std::vector<int64_t> taken;
    for (int64_t i = 0; i < first; ++i) taken.push_back(begins[0] + done[0] + i);
    for (int64_t i = 0; i < second; ++i) taken.push_back(begins[1] + done[1] + i);
    const Tensor index = at::tensor(taken, at::kLong);
    const Tensor y = b.ops->gated_delta_rule(rows.data.index_select(0, index), gates.data.index_select(0, index), rule,
                                             sequences_of({first, second}, {done[0] == 0, done[1] == 0}), states);
    expect_close(y, expected.index_select(0, index), 1e-10, fmt::format("{} and {} rows", first, second));
    done[0] += first, done[1] += second;
  }
  EXPECT_TRUE(states[1].eq(7.0).all().item<bool>()) << "the slot of no sequence";
  const Tensor before = states.clone();
  (void)b.ops->gated_delta_rule(rows.data.narrow(0, 0, 1), gates.data.narrow(0, 0, 1), rule,
                                sequences_of({0, 0}, {true, true}), states);
  expect_same_bits(states, before, "states after a pass whose row is of no segment");
}

TEST(DeltaRule, ConvolutionsHaveTheirGradientsAndZerosForPadding) {
  Bench b;
  const Value x = b.input({11, 7});
  const Weight weight(b.parameter("taps", {5, 1, 4}));
  const ConvolutionTaps taps{weight, Weight(b.parameter("bias", {5}))}, without_bias{weight, {}};
  const Segments segments = segments_of({0, 6, 6, 10}, 6); // the last row is of no segment
  b.expect_true_gradients([&](Tape& tape) {
    return std::vector{b.ops->silu_convolution(tape, x, 5, taps, segments),
                       b.ops->silu_convolution(tape, x, 5, without_bias, segments)};
  });
  Tape none(Tape::Mode::forward_only);
  const Tensor y = b.ops->silu_convolution(none, x, 5, taps, segments).data;
  EXPECT_EQ(y[10].abs().max().item<double>(), 0);
  Tensor sum = taps.bias.value().clone(); // of the second row of the last segment
  for (int64_t tap = 2; tap < 4; ++tap)
    sum += weight.value().select(1, 0).select(1, tap) * x.data[4 + tap].narrow(0, 0, 5);
  expect_close(y[7], sum * sum.sigmoid(), 1e-12, "a row by its definition");
}

TEST(DeltaRule, ConvolutionsHaveTheirGradientsAndGoOn) {
  Bench b;
  const Value x = b.input({11, 7});
  const ConvolutionTaps taps{Weight(b.parameter("taps", {5, 1, 4})), Weight(b.parameter("bias", {5}))};
  const Segments segments = segments_of({0, 7, 11}, 7);
  b.expect_true_gradients([&](Tape& tape) { return std::vector{b.ops->silu_convolution(tape, x, 5, taps, segments)}; });
  Tape none(Tape::Mode::forward_only);
  const Tensor expected = b.ops->silu_convolution(none, x, 5, taps, segments).data;
  const Tensor states = at::full({3, 3, 5}, 7.0, x.data.options());
  std::vector<int64_t> done{0, 7};
  for (const auto& [first, second] : {std::pair<int, int>{1, 2}, {2, 0}, {0, 1}, {1, 1}, {3, 0}}) {
    const CarriedSequences sequences = sequences_of({first, second}, {done[0] == 0, done[1] == 7});
    std::vector<int64_t> taken;
    for (int64_t i = 0; i < first; ++i) taken.push_back(done[0]++);
    for (int64_t i = 0; i < second; ++i) taken.push_back(done[1]++);
    const Tensor index = at::tensor(taken, at::kLong);
    const Tensor y = b.ops->silu_convolution(x.data.index_select(0, index), 5, taps, sequences, states);
    expect_close(y, expected.index_select(0, index), 1e-12, fmt::format("{} and {} rows", first, second));
  }
  EXPECT_TRUE(states[1].eq(7.0).all().item<bool>()) << "the slot of no sequence";
}

TEST(DeltaRule, GatesHaveTheirGradients) {
  Bench b;
  const Value x = b.input({4, 16}), y = b.input({4, 6}), gates = b.input({4, 8}), of_heads = b.input({4, 2});
  const Weight weight(b.parameter("weight", {3}));
  b.expect_true_gradients([&](Tape& tape) {
    const QueriesAndGates parts = split_gates(tape, x, 2, 3);
    return std::vector{gated_by_sigmoid(tape, y, parts.gates), gated_by_sigmoid(tape, y, of_heads), parts.rows,
                       b.ops->rmsnorm_heads(tape, {y, 0, 2}, 3, weight, 0.1, {gates, 1, 2})};
  });
  Tape none(Tape::Mode::forward_only);
  const QueriesAndGates parts = split_gates(none, x, 2, 3);
  expect_close(gated_by_sigmoid(none, y, of_heads).data.narrow(1, 3, 3),
               y.data.narrow(1, 3, 3) * of_heads.data.narrow(1, 1, 1).sigmoid(), 0,
               "what the second head's gate lets through");
  expect_close(parts.gates.data.narrow(1, 3, 3), x.data.narrow(1, 9, 3), 0, "the gate of the second head");
  expect_close(parts.rows.data.narrow(1, 3, 7), at::concat({x.data.narrow(1, 6, 3), x.data.narrow(1, 12, 4)}, 1), 0,
               "its query, and what is behind all of them");
}
