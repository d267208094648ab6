// Adapters in one matrix with their frozen weight, against central differences and against products of their own.
#include "bench.h"

#include <ATen/ops/zeros.h>

#include <deque>

using namespace fvlm;
using namespace fvlm::ops;
using at::Tensor;

namespace {

// Three parts that one product reads, of which the second has no adapter.
struct Joined : Bench {
  static constexpr int64_t columns = 10, rank = 3, room = 8, rows[] = {6, 4, 5}, all_rows = 15;

  Joined() {
    matrix = at::zeros({all_rows + room, columns + room}, at::kDouble);
    matrix.narrow(0, 0, all_rows).narrow(1, 0, columns).copy_(random({all_rows, columns}, 1));
    std::vector<Parameter*> parts;
    int64_t row = 0, adapted = 0;
    for (const int64_t count : rows) {
      Parameter& part = weights.emplace_back();
      part.value = matrix.narrow(0, row, count).narrow(1, 0, columns);
      part.joined = matrix;
      row += count;
      parts.push_back(&part);
      if (count == rows[1]) continue;
      auto adapter = std::make_shared<Adapter>();
      adapter->a = &view(all_a, all_d_a, rank * adapted++, rank, "a");
      adapter->b = &parameter("b", {count, rank});
      adapter->scale = 0.75;
      part.adapter = adapter;
    }
    weight.emplace(std::move(parts));
  }

  Parameter& view(const Tensor& values, const Tensor& gradients, int64_t first, int64_t count, const char* name) {
    Parameter& made = *parameters.emplace_back(std::make_unique<Parameter>());
    made.name = name;
    made.value = values.narrow(0, first, count);
    made.gradient = gradients.narrow(0, first, count);
    return made;
  }

  Tensor matrix, all_a = random({2 * rank, columns}, 2), all_d_a = at::full({2 * rank, columns}, 0.0, at::kDouble);
  std::deque<Parameter> weights;
  std::optional<Weight> weight;
};

} // namespace

TEST(JoinedAdapters, HaveTheGradientsOfTheirFormula) {
  Joined b;
  const Value x = b.input({7, Joined::columns}), residual = b.input({7, Joined::all_rows});
  const Weight norm(b.parameter("norm", {Joined::columns}));
  b.expect_true_gradients([&](Tape& tape) {
    const Tensor memory = Operations::input_memory(*b.weight, 7);
    const Value normed = b.ops->rmsnorm(tape, x, {}, norm, 0.1, memory).y;
    return std::vector{b.ops->linear(tape, normed, {*b.weight, {}}, residual)};
  });
  for (size_t part : {0, 2}) {
    const int64_t row = part == 0 ? 0 : 10, column = Joined::columns + (part == 0 ? 0 : Joined::rank);
    expect_close(b.matrix.narrow(0, row, Joined::rows[part]).narrow(1, column, Joined::rank),
                 b.weights[part].adapter->b->value * 0.75, 1e-15, "s B lies beside W");
  }
}

TEST(JoinedAdapters, EqualProductsOfTheirOwn) {
  Joined b;
  const Tensor numbers = random({5, Joined::columns}, 9), memory = Operations::input_memory(*b.weight, 5);
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

// What the down projection of an MLP does where SwiGLU's output is not kept.
TEST(JoinedAdapters, ReadTheOutputThatSwiGluComputesAgain) {
  Joined b;
  const Value gate_up = b.input({7, 2 * Joined::columns});
  b.expect_true_gradients([&](Tape& tape) {
    const Tape::LightCheckpointing light(tape, true);
    const Value twice = b.ops->slice_columns(tape, gate_up, 0, 2 * Joined::columns);
    const Value inner = b.ops->swiglu(tape, twice, Operations::input_memory(*b.weight, 7));
    return std::vector{b.ops->linear(tape, inner, *b.weight)};
  });
}
