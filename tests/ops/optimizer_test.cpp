#include "base/file.h"
#include "ops/optimizer.h"
#include "tools.h"

#include <ATen/ops/concat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/full_like.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros_like.h>
#include <fmt/format.h>

#include <cstdlib>
#include <cstring>
#include <gmock/gmock.h>
#include <unistd.h>

using namespace fvlm;
using namespace fvlm::ops;
using at::Tensor;

namespace {

Backend<fvlm_optimizer_v1> backend(const std::string& algorithm) {
  return reference_backend<fvlm_optimizer_v1>(("fvlm.optimizer/1:" + algorithm).c_str());
}

struct Matrix {
  int64_t rows, cols;
  std::vector<double> hyper; // in the table's order
};

// Segments with a gap of `gap` elements before each, and one group for each matrix.
struct Arena {
  std::vector<fvlm_optimizer_segment> segments;
  int64_t elements = 0;
  Arena(const std::vector<Matrix>& matrices, int64_t gap) {
    for (size_t group = 0; group < matrices.size(); ++group) {
      const auto& m = matrices[group];
      elements += gap;
      segments.push_back({elements, m.rows, m.cols, static_cast<int64_t>(group)});
      elements += m.rows * m.cols;
    }
  }
  // `packed` in the segments, `filler` in the gaps.
  Tensor filled(const Tensor& packed, double filler) const {
    Tensor all = at::full({elements}, filler, packed.options());
    int64_t from = 0;
    for (const auto& s : segments) {
      all.narrow(0, s.offset, s.rows * s.cols).copy_(packed.narrow(0, from, s.rows * s.cols));
      from += s.rows * s.cols;
    }
    return all;
  }
  Tensor packed(const Tensor& all) const {
    std::vector<Tensor> parts;
    for (const auto& s : segments) parts.push_back(all.narrow(0, s.offset, s.rows * s.cols));
    return at::concat(parts);
  }
};

fvlm_optimizer_query make_query(const Arena& arena, int64_t groups, at::ScalarType gradient = at::kFloat,
                                at::ScalarType parameter = at::kFloat) {
  return {.gradient_dtype = abi_dtype(gradient),
          .parameter_dtype = abi_dtype(parameter),
          .state_dtype = abi_dtype(at::kFloat),
          .elements = arena.elements,
          .group_count = groups};
}

Tensor hyper_of(const std::vector<Matrix>& matrices) {
  std::vector<Tensor> rows;
  rows.reserve(matrices.size());
  for (const auto& m : matrices) rows.push_back(at::tensor(m.hyper, at::kFloat));
  return at::stack(rows);
}

Optimizer::Control control(const Tensor& hyper, int64_t step, float scale = 1, int32_t skip = 0) {
  return {hyper, at::tensor({step}, at::kLong), at::tensor({scale}, at::kFloat), at::tensor({skip}, at::kInt)};
}

std::vector<Tensor> values(const std::vector<Optimizer::State>& states) {
  std::vector<Tensor> all;
  all.reserve(states.size());
  for (const auto& state : states) all.push_back(state.values);
  return all;
}

// The result of torch.optim, which is run now.
struct Oracle {
  Tensor before, after;
  std::vector<Tensor> gradients;
};
Oracle run_oracle(const std::string& algorithm, const Optimizer& optimizer, const std::vector<Matrix>& matrices,
                  int steps) {
  const std::string path = fmt::format("{}fvlm-oracle-{}-{}", testing::TempDir(), algorithm, getpid());
  std::string command = fmt::format("'{}' '{}' {} {} '{}'", FVLM_PYTHON, FVLM_ORACLE, algorithm, steps, path);
  int64_t elements = 0;
  for (const auto& m : matrices) {
    command += fmt::format(" {}x{}:", m.rows, m.cols);
    for (size_t index = 0; index < m.hyper.size(); ++index)
      command += fmt::format("{}={},", optimizer.hyperparameters()[index].name, m.hyper[index]);
    elements += m.rows * m.cols;
  }
  if (std::system(command.c_str()) != 0) throw std::runtime_error("the oracle failed: " + command);
  const std::string bytes = read_file(path);
  unlink(path.c_str());
  const Tensor all = at::empty({static_cast<int64_t>(bytes.size() / sizeof(float))}, at::kFloat);
  std::memcpy(all.data_ptr(), bytes.data(), bytes.size());
  const Tensor rows = all.view({steps + 2, elements});
  Oracle oracle{rows[0].clone(), rows[steps + 1].clone(), {}};
  for (int step = 1; step <= steps; ++step) oracle.gradients.push_back(rows[step].clone());
  return oracle;
}

void expect_torchs_steps(const std::string& algorithm, const std::vector<Matrix>& matrices) {
  constexpr int steps = 50;
  const Arena arena(matrices, 3);
  const Optimizer optimizer(backend(algorithm), make_query(arena, static_cast<int64_t>(matrices.size())),
                            arena.segments);
  const Oracle oracle = run_oracle(algorithm, optimizer, matrices, steps);
  const Tensor master = arena.filled(oracle.before, -5);
  auto states = optimizer.make_states();
  const Tensor hyper = hyper_of(matrices);
  for (int step = 1; step <= steps; ++step)
    optimizer.step({master, arena.filled(oracle.gradients[step - 1], std::nan("")), {}, values(states)},
                   control(hyper, step));
  EXPECT_GT((oracle.after - oracle.before).abs().max().item<float>(), 0.01) << "the oracle did not move";
  expect_close(arena.packed(master), oracle.after, 1e-6, "after 50 steps");
  expect_same_bits(master, arena.filled(arena.packed(master), -5), "outside the segments");
}

const std::vector<Matrix> adamw_matrices = {
    {4, 6, {1e-3, 0.9, 0.999, 1e-8, 0.01}}, {1, 5, {3e-3, 0.8, 0.95, 1e-6, 0.0}}, {3, 2, {1e-2, 0.9, 0.99, 1e-8, 0.1}}};
const std::vector<Matrix> muon_matrices = {
    {8, 8, {1e-3, 0.95, 1, 0.1, 1e-7}}, {24, 6, {1e-3, 0.9, 1, 0.0, 1e-7}}, {5, 16, {2e-3, 0.95, 0, 0.01, 1e-7}}};

} // namespace

TEST(AdamW, EqualsTorchOver50Steps) {
  expect_torchs_steps("adamw", adamw_matrices);
}

TEST(Muon, EqualsTorchOver50Steps) {
  expect_torchs_steps("muon", muon_matrices);
}

class Optimizers : public testing::TestWithParam<const char*> {
 protected:
  std::string algorithm = GetParam();
  std::vector<Matrix> matrices = algorithm == "muon" ? muon_matrices : adamw_matrices;
  Arena arena{matrices, 2};
  Tensor hyper = hyper_of(matrices);
  Tensor before = random({arena.elements}, 1, at::kFloat), gradient = random({arena.elements}, 2, at::kFloat);

  Optimizer make(at::ScalarType gradient_type = at::kFloat, at::ScalarType parameter_type = at::kFloat) const {
    return {backend(algorithm), make_query(arena, static_cast<int64_t>(matrices.size()), gradient_type, parameter_type),
            arena.segments};
  }
};

TEST_P(Optimizers, ScaleMultipliesTheGradient) {
  const auto optimizer = make();
  const Tensor scaled = before.clone(), plain = before.clone();
  auto scaled_states = values(optimizer.make_states()), plain_states = values(optimizer.make_states());
  optimizer.step({scaled, gradient * 8, {}, scaled_states}, control(hyper, 1, 0.125f));
  optimizer.step({plain, gradient, {}, plain_states}, control(hyper, 1));
  expect_same_bits(scaled, plain, "master");
  for (size_t index = 0; index < plain_states.size(); ++index)
    expect_same_bits(scaled_states[index], plain_states[index], "state");
}

TEST_P(Optimizers, SkippedStepChangesNothingEvenWithNanGradients) {
  const auto optimizer = make(at::kFloat, at::kBFloat16);
  const Tensor master = before.clone(), parameter = at::full({arena.elements}, 3, at::kBFloat16);
  auto states = values(optimizer.make_states());
  optimizer.step({master, at::full_like(gradient, std::nan("")), parameter, states}, control(hyper, 1, 1, 1));
  expect_same_bits(master, before, "master");
  expect_same_bits(parameter, at::full({arena.elements}, 3, at::kBFloat16), "parameter");
  for (const auto& state : states) expect_same_bits(state, at::zeros_like(state), "state");
}

TEST_P(Optimizers, ParameterIsTheRoundedMasterInsideSegments) {
  const auto optimizer = make(at::kBFloat16, at::kBFloat16);
  const Tensor master = before.clone(), parameter = at::full({arena.elements}, 3, at::kBFloat16);
  auto states = values(optimizer.make_states());
  optimizer.step({master, gradient.to(at::kBFloat16), parameter, states}, control(hyper, 1));
  expect_same_bits(parameter, arena.filled(arena.packed(master).to(at::kBFloat16), 3), "parameter");
  EXPECT_GT((master - before).abs().max().item<float>(), 0.0f);

  const Tensor exact = before.clone();
  auto exact_states = values(optimizer.make_states());
  make().step({exact, gradient.to(at::kBFloat16).to(at::kFloat), {}, exact_states}, control(hyper, 1));
  expect_same_bits(master, exact, "bfloat16 gradients are widened first");
}

TEST_P(Optimizers, AllowsEmptyAndNoSegments) {
  const Tensor master = before.clone();
  const Optimizer none(backend(algorithm), make_query(arena, 1), {});
  auto states = values(none.make_states());
  none.step({master, gradient, {}, states}, control(hyper, 1));
  const Optimizer empty(backend(algorithm), make_query(arena, 1), {{3, 0, 4, 0}, {5, 2, 0, 0}});
  empty.step({master, gradient, {}, states}, control(hyper, 1));
  expect_same_bits(master, before, "master");
}

INSTANTIATE_TEST_SUITE_P(Reference, Optimizers, testing::Values("adamw", "muon"),
                         [](const auto& info) { return std::string(info.param); });

TEST(AdamW, MergedNeighboursEqualSeparateSegments) {
  const auto& hyper = adamw_matrices[0].hyper;
  const Arena arena({{2, 3, hyper}, {1, 4, hyper}, {3, 3, hyper}}, 0);
  auto one_group = arena.segments;
  for (auto& segment : one_group) segment.group = 0;
  const Tensor before = random({arena.elements}, 1, at::kFloat), gradient = random({arena.elements}, 2, at::kFloat);
  const Tensor together = before.clone(), apart = before.clone();
  const Optimizer merged(backend("adamw"), make_query(arena, 1), one_group);
  const Optimizer split(backend("adamw"), make_query(arena, 3), arena.segments);
  auto states = values(merged.make_states()), split_states = values(split.make_states());
  merged.step({together, gradient, {}, states}, control(at::tensor(hyper, at::kFloat).unsqueeze(0), 1));
  split.step({apart, gradient, {}, split_states},
             control(at::tensor(hyper, at::kFloat).expand({3, -1}).contiguous(), 1));
  expect_same_bits(together, apart, "master");
}

TEST(Muon, RefusesVectors) {
  const Arena arena({{1, 4, {}}}, 0);
  try {
    Optimizer optimizer(backend("muon"), make_query(arena, 1), arena.segments);
    FAIL() << "not refused";
  } catch (const Error& error) {
    EXPECT_THAT(error.text(), testing::HasSubstr("segment 0 is a vector"));
  }
}

TEST(Optimizer, DefaultsAreThoseOfTorch) {
  const Arena arena({{2, 2, {}}, {2, 3, {}}}, 0);
  const Optimizer adamw(backend("adamw"), make_query(arena, 2), arena.segments);
  const Tensor want = at::tensor({1e-3, 0.9, 0.999, 1e-8, 1e-2}, at::kFloat).expand({2, -1});
  expect_same_bits(adamw.default_hyperparameters(), want, "adamw");
  const Optimizer muon(backend("muon"), make_query(arena, 2), arena.segments);
  expect_same_bits(muon.default_hyperparameters(), at::tensor({1e-3, 0.95, 1.0, 0.1, 1e-7}, at::kFloat).expand({2, -1}),
                   "muon");
  EXPECT_STREQ(adamw.hyperparameters()[0].name, "lr");
  EXPECT_EQ(adamw.make_states()[1].name, "v");
}
