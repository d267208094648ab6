// Adapters in one matrix with their frozen weight, against central differences and against products of their own.
#include "bench.h"
#include "ops/call_observer.h"

#include <ATen/ops/mm.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>

#include <array>
#include <deque>
#include <functional>
#include <numeric>
#include <set>

using namespace fvlm;
using namespace fvlm::ops;
using at::Tensor;

namespace {

// Parts that one product reads, of which the second has no adapter where there are three. Ranks and scales differ.
struct JoinedParts {
  static constexpr std::array<int64_t, 2> ranks{3, 2};
  static constexpr std::array<double, 2> scales{0.75, 1.5};
  static constexpr int64_t all_ranks = 5, room = 8;

  JoinedParts(Bench& bench, std::vector<int64_t> rows_of_parts, int64_t width)
      : rows(std::move(rows_of_parts)), columns(width), all_rows(std::accumulate(rows.begin(), rows.end(), int64_t{0})),
        matrix(at::zeros({all_rows + room, columns + room}, at::kDouble)),
        all_a(random({all_ranks, columns}, 2 + static_cast<uint64_t>(columns))),
        all_d_a(at::full({all_ranks, columns}, 0.0, at::kDouble)) {
    matrix.narrow(0, 0, all_rows).narrow(1, 0, columns).copy_(random({all_rows, columns}, 1));
    std::vector<Parameter*> parts;
    int64_t row = 0, first = 0;
    size_t adapted = 0;
    for (const int64_t count : rows) {
      Parameter& part = weights.emplace_back();
      part.value = matrix.narrow(0, row, count).narrow(1, 0, columns);
      part.joined = matrix;
      row += count;
      parts.push_back(&part);
      if (rows.size() == 3 && parts.size() == 2) continue;
      auto adapter = std::make_shared<Adapter>();
      const int64_t rank = ranks.at(adapted);
      adapter->a = &view(bench, first, rank);
      adapter->b = &bench.parameter("b", {count, rank});
      adapter->scale = scales.at(adapted++);
      part.adapter = adapter;
      first += rank;
    }
    weight.emplace(std::move(parts));
  }

  Parameter& view(Bench& bench, int64_t first, int64_t rank) const {
    Parameter& made = *bench.parameters.emplace_back(std::make_unique<Parameter>());
    made.name = "a";
    made.value = all_a.narrow(0, first, rank);
    made.gradient = all_d_a.narrow(0, first, rank);
    return made;
  }

  std::vector<int64_t> rows;
  int64_t columns, all_rows;
  Tensor matrix, all_a, all_d_a;
  std::deque<Parameter> weights;
  std::optional<Weight> weight;
};

struct Joined : Bench, JoinedParts {
  Joined() : JoinedParts(*this, {6, 4, 5}, 10) {}
};

// Options of the linears that `run` calls, but for FVLM_WITH_BACKWARD.
std::set<uint32_t> options_called(const std::function<void()>& run) {
  std::set<uint32_t> options;
  const CallObserver observer{[] {},
                              [&](std::string_view, const CalledQuery& query, double) {
                                options.insert(std::get<fvlm_kernels_query>(query).options & ~FVLM_WITH_BACKWARD);
                              }};
  use_call_observer(&observer);
  run();
  use_call_observer(nullptr);
  return options;
}

} // namespace

TEST(JoinedAdapters, HaveTheGradientsOfTheirFormula) {
  Joined b;
  const Value x = b.input({7, b.columns}), residual = b.input({7, b.all_rows});
  const Weight norm(b.parameter("norm", {b.columns}));
  b.expect_true_gradients([&](Tape& tape) {
    const Tensor memory = Operations::input_memory(*b.weight, 7);
    const Value normed = b.ops->rmsnorm(tape, x, {}, norm, 0.1, memory).y;
    return std::vector{b.ops->linear(tape, normed, {*b.weight, {}}, residual)};
  });
  for (size_t part : {0, 2}) {
    const size_t adapted = part == 0 ? 0 : 1;
    const int64_t row = part == 0 ? 0 : 10, column = b.columns + (part == 0 ? 0 : Joined::ranks[0]);
    expect_close(b.matrix.narrow(0, row, b.rows[part]).narrow(1, column, Joined::ranks.at(adapted)),
                 b.weights[part].adapter->b->value * Joined::scales.at(adapted), 1e-15, "s B lies beside W");
  }
}

TEST(JoinedAdapters, EqualProductsOfTheirOwn) {
  Joined b;
  const Tensor numbers = random({5, b.columns}, 9), memory = Operations::input_memory(*b.weight, 5);
  memory.copy_(numbers);
  std::vector<Tensor> outputs, gradients;
  for (const Tensor& x : {memory, numbers}) {
    for (const auto& each : b.parameters) each->has_gradient = false;
    Tape tape;
    const Value input(x, true), y = b.ops->linear(tape, input, *b.weight);
    y.gradient->add(random(y.data.sizes(), 10));
    tape.backward();
    outputs.push_back(y.data.clone());
    gradients.push_back(input.gradient->take());
    for (const auto& each : b.parameters) gradients.push_back(each->gradient.clone());
  }
  expect_close(outputs[0], outputs[1], 1e-12, "y");
  for (size_t i = 0; i < gradients.size() / 2; ++i)
    expect_close(gradients[i], gradients[i + gradients.size() / 2], 1e-12, "gradient " + std::to_string(i));
  EXPECT_FALSE(Operations::input_memory(Weight(b.weights[1]), 5).defined()) << "a part alone has no adapters";
}

// What adapters add beside a weight in e4m3, whose products lose 3 to 6 % of a number, keeps the bits of bfloat16.
TEST(JoinedAdapters, AreNotRoundedAsAWeightInFp8Is) {
  Joined b;
  b.ops.emplace(b.registry, OperationsOptions{.dtype = at::kDouble, .gradient_dtype = at::kDouble, .fp8 = true});
  for (Parameter& each : b.weights) each.allows_fp8 = true;
  const Tensor numbers = random({40, b.columns}, 9), d_y = random({40, b.all_rows}, 10);
  const auto run = [&] {
    Tape tape;
    const Value x(Operations::input_memory(*b.weight, 40).copy_(numbers), true), y = b.ops->linear(tape, x, *b.weight);
    y.gradient->add(d_y);
    tape.backward();
    return std::pair(y.data.clone(), x.gradient->take());
  };
  const auto options = options_called([&] { (void)run(); });
  EXPECT_TRUE(options.contains(FVLM_WITH_FP8 | FVLM_FP8_PAIRS));
  const auto [y, d_x] = run();
  Tensor added = at::zeros_like(y), d_added = at::zeros_like(d_x);
  for (const size_t part : {0, 2}) {
    const Adapter& adapter = *b.weights[part].adapter;
    const int64_t row = part == 0 ? 0 : 10, rows = b.rows[part];
    const Tensor product = at::mm(adapter.b->value, adapter.a->value) * adapter.scale;
    added.narrow(1, row, rows).add_(at::mm(numbers, product.t()));
    d_added.add_(at::mm(d_y.narrow(1, row, rows), product));
    adapter.b->value.zero_();
  }
  const auto [without, d_without] = run();
  const auto error = [](const Tensor& actual, const Tensor& expected) {
    return ((actual - expected).abs().max() / expected.abs().max()).item<double>();
  };
  EXPECT_LT(error(y - without, added), 0.01);
  EXPECT_LT(error(d_x - d_without, d_added), 0.01);
  EXPECT_GT(error(without, at::mm(numbers, b.matrix.narrow(0, 0, b.all_rows).narrow(1, 0, b.columns).t())), 0.01);
}

// What the down projection of an MLP does where SwiGLU's output is not kept.
TEST(JoinedAdapters, ReadTheOutputThatSwiGluComputesAgain) {
  Joined b;
  const Value gate_up = b.input({7, 2 * b.columns});
  b.expect_true_gradients([&](Tape& tape) {
    const Tape::LightCheckpointing light(tape, true);
    const Value twice = b.ops->slice_columns(tape, gate_up, 0, 2 * b.columns);
    const Value inner = b.ops->swiglu(tape, twice, Operations::input_memory(*b.weight, 7));
    return std::vector{b.ops->linear(tape, inner, *b.weight)};
  });
}

// SwiGLU and its derivative within the joined linears, with and without keeping its output.
TEST(JoinedAdapters, HaveSwiGluInTheirProducts) {
  for (const bool light : {false, true}) {
    SCOPED_TRACE(light ? "light" : "kept");
    Bench b;
    JoinedParts up(b, {4, 4}, 5), down(b, {6}, 4);
    const Value x = b.input({7, 5});
    const Weight norm(b.parameter("norm", {5}));
    const auto options = options_called([&] {
      b.expect_true_gradients([&](Tape& tape) {
        const Tape::LightCheckpointing lean(tape, light);
        const Value normed = b.ops->rmsnorm(tape, x, {}, norm, 0.1, Operations::input_memory(*up.weight, 7)).y;
        return std::vector{b.ops->swiglu_mlp(tape, normed, {*up.weight, {}}, {*down.weight, {}}, {},
                                             Operations::input_memory(*down.weight, 7))};
      });
    });
    EXPECT_TRUE(options.contains(FVLM_WITH_SWIGLU));
    EXPECT_TRUE(options.contains(FVLM_SWIGLU_INPUT | FVLM_STRIDED_WEIGHT | (light ? FVLM_WITH_OUTPUT : 0)));
  }
}

// Where neither the input nor the adapters of the first linear learn, its output has no gradient.
TEST(JoinedAdapters, HaveSwiGluApartWhereNothingBeforeItLearns) {
  Bench b;
  JoinedParts up(b, {4, 4}, 5), down(b, {6}, 4);
  for (const Parameter& each : up.weights)
    for (Parameter* one : {each.adapter->a, each.adapter->b}) one->gradient = Tensor();
  const Tensor x = random({7, 5}, 3);
  const auto options = options_called([&] {
    b.expect_true_gradients([&](Tape& tape) {
      const Tensor input = Operations::input_memory(*up.weight, 7).copy_(x);
      return std::vector{b.ops->swiglu_mlp(tape, Value(input), {*up.weight, {}}, {*down.weight, {}}, {},
                                           Operations::input_memory(*down.weight, 7))};
    });
  });
  EXPECT_FALSE(options.contains(FVLM_WITH_SWIGLU));
}
