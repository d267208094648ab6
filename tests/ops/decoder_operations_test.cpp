// Operations of decoders other than Llama: norms of heads and without weights, scaled and reversed rotary embedding,
// bounded logits, rows that are added to others between layers.
#include "bench.h"
#include "ops/pointwise.h"
#include "ops/rows.h"
#include "ops/short_convolution.h"

#include <ATen/ops/conv2d.h>
#include <ATen/ops/full.h>
#include <ATen/ops/logsumexp.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <fmt/format.h>

using namespace fvlm;
using namespace fvlm::ops;
using at::Tensor;

TEST(DecoderOperations, NormsOfHeadsAndWithoutWeights) {
  Bench b;
  const Value x = b.input({3, 10});
  const Weight weight(b.parameter("weight", {2}));
  b.expect_true_gradients([&](Tape& tape) {
    const Value q = b.ops->rmsnorm_heads(tape, {x, 0, 3}, 2, weight, 0.1),
                k = b.ops->rmsnorm_heads(tape, {x, 6, 1}, 2, {}, 0.1);
    return std::vector{q, k, b.ops->rmsnorm(tape, x, {}, {}, 0.1).y, b.ops->slice_columns(tape, x, 8, 2)};
  });
  Tape none(Tape::Mode::forward_only);
  const Tensor head = x.data.narrow(1, 2, 2), k = b.ops->rmsnorm_heads(none, {x, 2, 1}, 2, {}, 0.1).data;
  expect_close(k, head * (head.square().mean(1, true) + static_cast<double>(0.1F)).rsqrt(), 1e-12, "a head by itself");
}

TEST(DecoderOperations, PointwiseFunctionsHaveTheirDerivatives) {
  Bench b;
  const Value x = b.input({4, 5});
  b.expect_true_gradients([&](Tape& tape) {
    return std::vector{relu_squared(tape, x), softcap(tape, x, 1.5), softcap(tape, x, 40)};
  });
  Tape none(Tape::Mode::forward_only);
  EXPECT_LT(softcap(none, Value(x.data * 1000), 1.5).data.abs().max().item<double>(), 1.5 + 1e-12);
  EXPECT_EQ(softcap(none, Value(x.data.to(at::kBFloat16)), 15).data.scalar_type(), at::kFloat);
}

TEST(DecoderOperations, SumsAreCompensatedLikeThoseOfNorms) {
  Bench b;
  const Value x = b.input({4, 6}), residual = b.input({4, 6});
  b.expect_true_gradients([&](Tape& tape) { return std::vector{add(tape, x, residual), add(tape, x, x)}; });
  Tape none(Tape::Mode::forward_only);
  const Value small(at::full({1, 8}, 0.01, at::kBFloat16));
  Value plain(at::full({1, 8}, 4, at::kBFloat16)), kept = plain;
  Tensor compensation;
  for (int i = 0; i < 64; ++i) {
    plain = add(none, small, plain);
    kept = add(none, small, kept, &compensation);
  }
  EXPECT_EQ(plain.data.max().item<double>(), 4) << "each term is lost";
  EXPECT_NEAR(kept.data.max().item<double>(), 4.64, 0.02);
}

TEST(DecoderOperations, RotationByFrequenciesAndTheOtherWay) {
  Bench b;
  const Value x = b.input({3, 8});
  const Weight w(b.parameter("weight", {8, 8}));
  const Tensor positions = at::tensor({0, 5, 9}, at::kInt), frequencies = at::tensor({0.7, 0.01}, at::kDouble);
  for (const bool reversed : {false, true})
    b.expect_true_gradients([&](Tape& tape) {
      const Value y = b.ops->linear(tape, x, w);
      return std::vector{b.ops->rotate(tape, y, 1, 4, {4, 1, frequencies, reversed}, positions)};
    });
  Tape none(Tape::Mode::forward_only);
  const auto rotated = [&](const Rotary& rotary) {
    return b.ops->rotate(none, Value(x.data.clone()), 2, 4, rotary, positions).data;
  };
  const Tensor of_theta = at::tensor({1.0, 0.1}, at::kDouble);
  expect_close(rotated({4, 1, of_theta}), rotated({4, 100.0}), 1e-12, "theta's frequencies");
  expect_close(rotated({4, 100.0, {}, true}), rotated({4, 1, -of_theta}), 1e-12, "the other way");
}

// Each pair is rotated by the position on its own axis, alone and before attention.
TEST(DecoderOperations, RotationByPositionsOnSeveralAxes) {
  Bench b;
  const Value x = b.input({3, 8});
  const Weight w(b.parameter("weight", {8, 8}));
  const Tensor positions = at::tensor({0, 5, 9, 2, 2, 7}, at::kInt).view({2, 3}),
               axes = at::tensor({0.7, 0.0, 0.0, 0.01}, at::kDouble).view({2, 2});
  const Rotary rotary{.dimensions = 4, .axes = axes};
  b.expect_true_gradients(
      [&](Tape& tape) { return std::vector{b.ops->rotate(tape, b.ops->linear(tape, x, w), 1, 4, rotary, positions)}; });
  Tape none(Tape::Mode::forward_only);
  const Tensor rotated = b.ops->rotate(none, Value(x.data.clone()), 2, 4, rotary, positions).data.view({3, 2, 4}),
               plain = x.data.view({3, 2, 4});
  for (int64_t pair = 0; pair < 2; ++pair) {
    const Tensor angle = (positions[pair] * axes[pair][pair]).unsqueeze(1), cosine = angle.cos(), sine = angle.sin();
    const Tensor a = plain.select(2, pair), c = plain.select(2, pair + 2);
    expect_close(rotated.select(2, pair), a * cosine - c * sine, 1e-12, "first of a pair");
    expect_close(rotated.select(2, pair + 2), c * cosine + a * sine, 1e-12, "second of a pair");
  }
  const Tensor qkv = b.input({3, 12}).data;
  Tensor before = qkv.clone();
  (void)b.ops->rotate(none, Value(before), 2, 4, rotary, positions);
  const Segments segments{at::tensor({0, 3}, at::kInt), positions, 3};
  const auto attended = [&](const Tensor& value, const Rotary& with) {
    const Value all(value.clone());
    return b.ops->attention(none, {all, 0, 1}, {all, 4, 1}, {all, 8, 1}, segments, segments, {4, true, with}).data;
  };
  expect_close(attended(qkv, rotary), attended(before, {}), 1e-12, "attention");
  EXPECT_THROW((void)attended(qkv, {4, 100.0}), Error) << "it has frequencies for one axis alone";
}

// A plugin that rotates by itself cannot do this: the rotation comes before it.
TEST(DecoderOperations, AttentionRotatesByFrequencies) {
  Bench b;
  const Value qkv = b.input({3, 12});
  const Segments segments{at::tensor({0, 3}, at::kInt), at::tensor({4, 5, 6}, at::kInt), 3};
  const auto attend = [&](Tape& tape, const Value& value, const Rotary& rotary, double factor) {
    return b.ops->attention(tape, {value, 0, 1}, {value, 4, 1}, {value, 8, 1}, segments, segments,
                            {4, true, rotary, factor});
  };
  const Tensor of_theta = at::tensor({1.0, 0.1}, at::kDouble);
  Tape none(Tape::Mode::forward_only);
  const auto attended = [&](const Rotary& rotary, double factor) {
    return attend(none, Value(qkv.data.clone()), rotary, factor).data;
  };
  expect_close(attended({4, 1, of_theta}, 1), attended({4, 100.0}, 1), 1e-12, "theta's frequencies");
  Tensor scaled = qkv.data.clone();
  scaled.narrow(1, 0, 4).mul_(1.75);
  expect_close(attended({4, 100.0}, 1.75), attend(none, Value(scaled), {4, 100.0}, 1).data, 1e-12, "score_factor");
}

TEST(DecoderOperations, ASoftcapBoundsTheLogitsOfCrossEntropy) {
  Bench b;
  const Value hidden = b.input({4, 3});
  const Weight head(b.parameter("head", {5, 3}));
  const Tensor targets = at::tensor({1, -1, 4, 0}, at::kLong);
  b.expect_true_gradients(
      [&](Tape& tape) { return std::vector{b.ops->cross_entropy(tape, hidden, head, targets, 0.75)}; });
  Tape none(Tape::Mode::forward_only);
  const Tensor logits = softcap(none, b.ops->linear(none, hidden, head), 0.75).data,
               expected = logits.logsumexp(1) - logits.gather(1, targets.clamp_min(0).unsqueeze(1)).squeeze(1);
  expect_close(b.ops->cross_entropy(none, hidden, head, targets, 0.75).data, expected * targets.ge(0), 1e-12, "losses");
  Tape tape;
  b.parameters[0]->has_gradient = false;
  const Tensor weights = at::tensor({0.5, 7.0, 0.25, 1.0}, at::kDouble);
  expect_close(b.ops->weighted_cross_entropy(tape, hidden, head, targets, weights, 0.75), expected * targets.ge(0),
               1e-12, "weighted");
}

TEST(DecoderOperations, RowsAreAddedToTheirPlacesAndPaddingToNone) {
  Bench b;
  const Value x = b.input({4, 3}), one = b.input({3, 3}), other = b.input({3, 2});
  const Tensor places = at::tensor({2, 0, 4}, at::kLong);
  b.expect_true_gradients([&](Tape& tape) {
    const Value both = join_columns(tape, {one, other});
    return std::vector{add_to_rows(tape, x, b.ops->slice_columns(tape, both, 0, 3), places),
                       b.ops->slice_columns(tape, both, 3, 2)};
  });
  Tape none(Tape::Mode::forward_only);
  Tensor expected = x.data.clone();
  expected[2] += one.data[0];
  expected[0] += one.data[1];
  expect_close(add_to_rows(none, x, one, places).data, expected, 1e-15, "rows");
}

TEST(DecoderOperations, RowsOfATableAreMixedByTheirShares) {
  Bench b;
  const Weight table(b.parameter("table", {5, 3}));
  const Tensor index = at::tensor({4, 0, 1, 1, 0, 4}, at::kLong).view({3, 2}),
               shares = at::tensor({0.25, 0.75, 1.0, 0.5, 0.0, 0.0}, at::kFloat).view({3, 2});
  b.expect_true_gradients(
      [&](Tape& tape) { return std::vector{mix_rows_of(tape, table, index, shares, at::kDouble)}; });
  Tape none(Tape::Mode::forward_only);
  const Tensor mixed = mix_rows_of(none, table, index, shares, at::kDouble).data;
  expect_close(mixed[0], 0.25 * table.value()[4] + 0.75 * table.value()[0], 1e-15, "of two");
  expect_close(mixed[1], 1.5 * table.value()[1], 1e-15, "of one twice");
  EXPECT_TRUE(mixed[2].eq(0).all().item<bool>());
}

// With rows padded to another number of columns, as a GPU gets them, the outcome is the same but for the order in which
// LibTorch's product adds 342 and 344 numbers.
TEST(DecoderOperations, LinearOfSwiGluHasPaddedRows) {
  for (const bool light : {false, true}) {
    Bench b;
    const Value gate_up = b.input({5, 2 * 342}), residual = b.input({5, 3});
    const Operations::Layer down{Weight(b.parameter("down", {3, 342})), Weight(b.parameter("bias", {3}))};
    std::vector<Tensor> outcome;
    for (const int64_t columns : {342, 344}) {
      SCOPED_TRACE(fmt::format("{} columns{}", columns, light ? ", light" : ""));
      const auto run = [&](Tape& tape) {
        const Tape::LightCheckpointing lean(tape, light);
        return b.ops->linear_of_swiglu(tape, gate_up, down, residual, columns);
      };
      b.expect_true_gradients([&](Tape& tape) { return std::vector{run(tape)}; });
      for (const auto& each : b.parameters) each->has_gradient = false;
      Tape tape;
      const Value y = run(tape);
      y.gradient->add(random(y.data.sizes(), 7));
      tape.backward();
      for (const Tensor& each : {y.data, gate_up.gradient->take(), residual.gradient->take(),
                                 b.parameters[0]->gradient.clone(), b.parameters[1]->gradient.clone()})
        outcome.push_back(each);
    }
    for (size_t i = 0; i < 5; ++i) expect_close(outcome[5 + i], outcome[i], 1e-14, fmt::format("outcome {}", i));
  }
}

namespace {

// Segments of 1, 5, 0 and 2 rows, and two rows of padding.
constexpr int64_t convolved_rows = 10;
Tensor convolved_bounds() {
  return at::tensor({0, 1, 6, 6, 8}, at::kInt);
}

} // namespace

TEST(DecoderOperations, ConvolutionsHaveTheirDerivatives) {
  for (const int64_t taps : {1, 2, 4}) {
    SCOPED_TRACE(taps);
    Bench b;
    const Value x = b.input({convolved_rows, 9});
    const ConvolutionTaps all{Weight(b.parameter("taps", {3, 1, taps})), Weight(b.parameter("bias", {3}))};
    const ConvolutionTaps without_bias{all.weight, {}};
    const Tensor within = rows_within_segments(convolved_bounds(), convolved_rows, taps - 1, x.data.options());
    b.expect_true_gradients([&](Tape& tape) {
      return std::vector{gated_convolution(tape, x, all, within), gated_convolution(tape, x, without_bias, within)};
    });
  }
}

TEST(DecoderOperations, ConvolutionsStayWithinTheirSegments) {
  Bench b;
  const Value x = b.input({convolved_rows, 9});
  const ConvolutionTaps taps{Weight(b.parameter("taps", {3, 1, 3})), {}};
  Tape none(Tape::Mode::forward_only);
  const auto alone = [&](const Tensor& rows) {
    const Tensor within =
        rows_within_segments(at::tensor({int64_t{0}, rows.size(0)}, at::kInt), rows.size(0), 2, rows.options());
    return gated_convolution(none, Value(rows), taps, within).data;
  };
  const Tensor within = rows_within_segments(convolved_bounds(), convolved_rows, 2, x.data.options());
  const Tensor together = gated_convolution(none, x, taps, within).data;
  for (const auto& [begin, count] : {std::pair<int64_t, int64_t>{0, 1}, {1, 5}, {6, 2}})
    expect_close(together.narrow(0, begin, count), alone(x.data.narrow(0, begin, count)), 1e-15, "a segment by itself");
  // By its definition, of a row in the middle.
  const auto part = [&](int64_t row, int64_t which) { return x.data[row].narrow(0, 3 * which, 3); };
  Tensor sum = at::zeros({3}, x.data.options());
  for (int64_t tap = 0; tap < 3; ++tap)
    sum += taps.weight.value().select(1, 0).select(1, tap) * part(2 + tap, 0) * part(2 + tap, 2);
  expect_close(together[4], sum * part(4, 1), 1e-12, "a row by its definition");
}

namespace {

// The patches around each one of a grid of 3 x 2 and one of 1 x 4, line by line, and three rows of padding.
Tensor patches_around() {
  std::vector<int64_t> around;
  for (const auto& [first, lines, columns] : {std::array<int64_t, 3>{0, 3, 2}, {6, 1, 4}})
    for (int64_t patch = 0; patch < lines * columns; ++patch)
      for (int64_t line = patch / columns - 1; line <= patch / columns + 1; ++line)
        for (int64_t column = patch % columns - 1; column <= patch % columns + 1; ++column) {
          const bool is_inside = line >= 0 && line < lines && column >= 0 && column < columns;
          around.push_back(is_inside ? first + line * columns + column : -1);
        }
  around.resize(13 * 9, -1);
  return at::tensor(around, at::kLong).view({13, 9}).t();
}

} // namespace

TEST(DecoderOperations, ConvolutionsOfPatchesHaveTheirDerivatives) {
  Bench b;
  const Value x = b.input({13, 9});
  const ConvolutionTaps taps{Weight(b.parameter("taps", {3, 1, 3, 3})), {}};
  b.expect_true_gradients(
      [&](Tape& tape) { return std::vector{gated_convolution(tape, x, taps, PatchSquares(patches_around()))}; });
}

TEST(DecoderOperations, ConvolutionsOfPatchesAreThoseOfEachImage) {
  Bench b;
  const Value x = b.input({13, 9});
  x.data.narrow(0, 10, 3).fill_(std::nan("")); // padding
  const ConvolutionTaps taps{Weight(b.parameter("taps", {3, 1, 3, 3})), {}};
  Tape none(Tape::Mode::forward_only);
  const Tensor made = gated_convolution(none, x, taps, PatchSquares(patches_around())).data;
  for (const auto& [first, lines, columns] : {std::array<int64_t, 3>{0, 3, 2}, {6, 1, 4}}) {
    const auto part = [&, count = lines * columns, begin = first](int64_t which) {
      return x.data.narrow(0, begin, count).narrow(1, 3 * which, 3);
    };
    const Tensor image = (part(0) * part(2)).t().reshape({1, 3, lines, columns});
    const Tensor convolved = at::conv2d(image, taps.weight.value(), {}, 1, 1, 1, 3).flatten(2)[0].t();
    expect_close(made.narrow(0, first, lines * columns), convolved * part(1), 1e-12, fmt::format("{} lines", lines));
  }
}

// Rows of two sequences, a few at a time, in pages of two rows that lie in any order.
TEST(DecoderOperations, ConvolutionsOverPagesAreThoseOfWholeSequences) {
  Bench b;
  const Value x = b.input({11, 9});
  const ConvolutionTaps taps{Weight(b.parameter("taps", {3, 1, 4})), Weight(b.parameter("bias", {3}))};
  Tape none(Tape::Mode::forward_only);
  const Tensor within = rows_within_segments(at::tensor({0, 7, 11}, at::kInt), 11, 3, x.data.options());
  const Tensor expected = gated_convolution(none, x, taps, within).data;
  const Tensor pages = at::full({8, 2, 3}, std::nan(""), x.data.options()),
               page_table = at::tensor({5, 2, 7, 1, 3, 6, 0, 0}, at::kInt).view({2, 4});
  const auto pass = [&](const std::vector<int64_t>& rows) { // as they are in x
    std::vector<int> sequences, indices;
    std::vector<int64_t> places;
    for (const int64_t row : rows) sequences.push_back(row >= 7), indices.push_back(static_cast<int>(row % 7));
    for (size_t i = 0; i < rows.size(); ++i) places.push_back(page_table[sequences[i]][indices[i] / 2].item<int64_t>());
    for (const int index : indices) places.push_back(index % 2);
    const Tensor at_rows = at::tensor(rows, at::kLong);
    const EarlierRows earlier(at::tensor(indices, at::kInt), at::tensor(sequences, at::kInt), page_table, 2, 3);
    const Tensor made = append_and_convolve(x.data.index_select(0, at_rows), taps, pages,
                                            at::tensor(places, at::kLong).view({2, -1}), earlier);
    expect_close(made, expected.index_select(0, at_rows), 1e-12, fmt::format("from row {}", rows.front()));
  };
  pass({0, 7, 8}), pass({1, 2, 3}), pass({9}), pass({4, 10}), pass({5}), pass({6});
}

TEST(DecoderOperations, ClippedNumbersHaveNoGradient) {
  Bench b;
  const Value x = b.input({4, 5});
  const Tensor least = at::tensor(-0.4, at::kDouble), most = at::tensor(0.6, at::kDouble);
  b.expect_true_gradients([&](Tape& tape) { return std::vector{clamp(tape, x, least, most)}; });
  Tape tape;
  const Value line(at::tensor({-1.0, -0.4, 0.1, 0.6, 2.0}, at::kDouble), true), y = clamp(tape, line, least, most);
  expect_close(y.data, at::tensor({-0.4, -0.4, 0.1, 0.6, 0.6}, at::kDouble), 0, "values");
  y.gradient->add(at::full({5}, 3, at::kDouble));
  tape.backward();
  expect_close(line.gradient->take(), at::tensor({0, 3, 3, 3, 0}, at::kDouble), 0,
               "gradients, which bounds themselves have");
}

TEST(DecoderOperations, InnerQuartersOfHeadsAreSwapped) {
  Bench b;
  const Value x = b.input({3, 16});
  b.expect_true_gradients([&](Tape& tape) { return std::vector{swap_inner_quarters(tape, x, 8)}; });
  Tape none(Tape::Mode::forward_only);
  const Tensor order = at::tensor({0, 1, 4, 5, 2, 3, 6, 7, 8, 9, 12, 13, 10, 11, 14, 15}, at::kLong);
  expect_close(swap_inner_quarters(none, x, 8).data, x.data.index_select(1, order), 0, "columns");
}
