// muon_test.cpp: the built optimizer-muon library against the formula in double, and against torch.optim.Muon.
#include "common/testing/arena.h"
#include "common/testing/guarded.h"
#include "common/testing/oracle.h"

namespace fvlm::testing {
namespace {

using Group = std::vector<float>;
using Matrix = std::vector<double>; // row-major

Group group(float lr, float momentum, float nesterov, float weight_decay, float match_rms) {
  return {lr, momentum, nesterov, weight_decay, 1e-7f, 5, 3.4445f, -4.7750f, 2.0315f, match_rms};
}
const Group usual = group(0.02f, 0.95f, 1, 0.1f, 0), plain_momentum = group(1e-3f, 0.9f, 0, 0, 1);

Matrix multiply(const Matrix& a, const Matrix& b, std::size_t rows, std::size_t depth, std::size_t cols) {
  Matrix c(rows * cols);
  for (std::size_t i = 0; i < rows; ++i) {
    for (std::size_t k = 0; k < depth; ++k) {
      for (std::size_t j = 0; j < cols; ++j) c[i * cols + j] += a[i * depth + k] * b[k * cols + j];
    }
  }
  return c;
}

Matrix transposed(const Matrix& a, std::size_t rows, std::size_t cols) {
  Matrix t(a.size());
  for (std::size_t i = 0; i < rows; ++i) {
    for (std::size_t j = 0; j < cols; ++j) t[j * rows + i] = a[i * cols + j];
  }
  return t;
}

Matrix newton_schulz(Matrix x, std::size_t rows, std::size_t cols, const Group& h) {
  double norm = 0;
  for (const double value : x) norm += value * value;
  norm = std::max(std::sqrt(norm), static_cast<double>(h[4]));
  for (double& value : x) value /= norm;
  if (rows > cols) return transposed(newton_schulz(transposed(x, rows, cols), cols, rows, h), cols, rows);
  for (int step = 0; step < static_cast<int>(h[5]); ++step) {
    const Matrix gram = multiply(x, transposed(x, rows, cols), rows, cols, rows);
    Matrix polynomial = multiply(gram, gram, rows, rows, rows);
    for (std::size_t i = 0; i < polynomial.size(); ++i) polynomial[i] = h[7] * gram[i] + h[8] * polynomial[i];
    const Matrix product = multiply(polynomial, x, rows, rows, cols);
    for (std::size_t i = 0; i < x.size(); ++i) x[i] = h[6] * x[i] + product[i];
  }
  return x;
}

// Applies a step to one segment of `before`, in double.
void expect_segment(const Arena& before, const Arena& after, const fvlm_optimizer_segment& s, const Group& h) {
  const auto rows = static_cast<std::size_t>(s.rows), cols = static_cast<std::size_t>(s.cols);
  Matrix update(rows * cols), momentum(update.size());
  for (std::size_t i = 0; i < update.size(); ++i) {
    const auto at = s.offset + static_cast<std::int64_t>(i);
    const double g = before.gradient.get(at) * static_cast<double>(before.scale), mu = h[1];
    momentum[i] = mu * before.states[0].get(at) + (1 - mu) * g;
    update[i] = h[2] != 0 ? (1 - mu) * g + mu * momentum[i] : momentum[i];
  }
  const Matrix direction = newton_schulz(update, rows, cols, h);
  const double ratio = static_cast<double>(s.rows) / static_cast<double>(s.cols);
  const double larger = static_cast<double>(std::max(s.rows, s.cols));
  const double lr = h[0] * (h[9] != 0 ? 0.2 * std::sqrt(larger) : std::sqrt(std::max(1.0, ratio)));
  for (std::size_t i = 0; i < update.size(); ++i) {
    const auto at = static_cast<std::size_t>(s.offset) + i;
    const double expected = before.master[at] * (1 - static_cast<double>(h[0]) * h[3]) - lr * direction[i];
    ASSERT_NEAR(after.master[at], expected, lr * 2e-5 + 2e-7) << rows << " x " << cols << ", element " << i;
    ASSERT_NEAR(after.states[0].get(static_cast<std::int64_t>(at)), momentum[i],
                before.shape.state.bits == 16 ? std::fabs(momentum[i]) / 256 : 1e-6)
        << rows << " x " << cols << ", element " << i;
    if (before.shape.parameter.bits == 16) {
      ASSERT_EQ(after.parameter.get(static_cast<std::int64_t>(at)), rounded(after.master[at], before.shape.parameter));
    }
  }
}

// Wide, tall, square, larger than a panel in both dimensions, one column, empty; with gaps.
ArenaShape ragged_shape() {
  ArenaShape shape;
  std::int64_t at = 3, index = 0;
  for (const auto& [rows, cols] :
       {std::pair{33, 65}, {65, 33}, {64, 64}, {2, 2}, {131, 70}, {70, 600}, {5, 1}, {2, 0}, {0, 9}}) {
    shape.segments.push_back({at, rows, cols, index++ % 2});
    at += rows * cols + index % 3;
  }
  shape.groups = 2;
  shape.elements = at + 2;
  return shape;
}

class MuonTest : public ::testing::Test {
 protected:
  Host host{2};
  Optimizer plugin{FVLM_TEST_LIBRARY, "fvlm.optimizer/1:muon", host};
};

struct Types {
  fvlm_dtype gradient, parameter, state;
};
std::string name_of(fvlm_dtype d) {
  return d.bits == 32 ? "f32" : d.code == FVLM_BFLOAT ? "bf16" : "f16";
}
void PrintTo(const Types& types, std::ostream* out) {
  *out << name_of(types.gradient) << " " << name_of(types.parameter) << " " << name_of(types.state);
}
class MuonTypesTest : public MuonTest, public ::testing::WithParamInterface<Types> {};

TEST_P(MuonTypesTest, two_steps_match_the_formula_in_double) {
  ArenaShape shape = ragged_shape();
  shape.gradient = GetParam().gradient;
  shape.parameter = GetParam().parameter;
  shape.state = GetParam().state;
  Arena arena(plugin, shape, {usual, plain_momentum});
  arena.scale = 0.5f;
  for (arena.step = 1; arena.step <= 2; ++arena.step) {
    const Arena before = arena;
    ASSERT_EQ(arena.run(plugin, host), FVLM_OK) << arena.error;
    for (const auto& segment : shape.segments) {
      expect_segment(before, arena, segment, segment.group ? plain_momentum : usual);
      if (HasFatalFailure()) return;
    }
  }
}
INSTANTIATE_TEST_SUITE_P(gradient_parameter_state, MuonTypesTest,
                         ::testing::Values(Types{f32, f32, f32}, Types{bf16, bf16, bf16}, Types{f16, f16, f32}),
                         [](const auto& info) {
                           return name_of(info.param.gradient) + "_" + name_of(info.param.parameter) + "_" +
                                  name_of(info.param.state);
                         });

TEST_F(MuonTest, every_instruction_set_matches_the_formula_in_double) {
  for (const std::string& level : cpu_levels()) {
    setenv("FVLM_CPU_LEVEL", level.c_str(), 1);
    const Optimizer other(FVLM_TEST_LIBRARY, "fvlm.optimizer/1:muon", host);
    unsetenv("FVLM_CPU_LEVEL");
    Arena arena(other, ragged_shape(), {usual, plain_momentum});
    const Arena before = arena;
    ASSERT_EQ(arena.run(other, host), FVLM_OK) << arena.error;
    for (const auto& segment : arena.shape.segments) {
      expect_segment(before, arena, segment, segment.group ? plain_momentum : usual);
      ASSERT_FALSE(HasFatalFailure()) << level;
    }
  }
}

TEST_F(MuonTest, gaps_between_segments_are_untouched) {
  ArenaShape shape = ragged_shape();
  shape.parameter = bf16;
  Arena arena(plugin, shape, {usual, usual});
  expect_gaps_untouched(arena, plugin, host);
}

TEST_F(MuonTest, threads_and_repetition_do_not_change_a_bit) {
  ArenaShape shape = ragged_shape();
  shape.parameter = f16;
  expect_same_bits_with_any_threads(Arena(plugin, shape, {usual, plain_momentum}), plugin);
}

TEST_F(MuonTest, skip_changes_nothing) {
  Arena arena(plugin, ragged_shape(), {usual, usual});
  const std::vector<char> before = arena.bits();
  arena.skip = 1;
  ASSERT_EQ(arena.run(plugin, host), FVLM_OK) << arena.error;
  EXPECT_EQ(arena.bits(), before);
}

TEST_F(MuonTest, a_zero_gradient_only_decays) {
  ArenaShape shape;
  shape.segments = {{0, 20, 30, 0}};
  shape.elements = 600;
  Arena arena(plugin, shape, {usual});
  for (std::int64_t i = 0; i < 600; ++i) arena.gradient.set(i, 0);
  const Arena before = arena;
  ASSERT_EQ(arena.run(plugin, host), FVLM_OK) << arena.error;
  for (std::size_t i = 0; i < 600; ++i) EXPECT_FLOAT_EQ(arena.master[i], before.master[i] * (1 - 0.02f * 0.1f)) << i;
}

TEST_F(MuonTest, a_nan_spoils_its_matrix_and_no_other) {
  ArenaShape shape;
  shape.segments = {{0, 20, 30, 0}, {600, 30, 20, 0}};
  shape.elements = 1200;
  for (const float bad : {NAN, INFINITY}) {
    Arena arena(plugin, shape, {usual});
    Arena clean = arena;
    arena.gradient.set(5, bad);
    ASSERT_EQ(arena.run(plugin, host), FVLM_OK) << arena.error;
    ASSERT_EQ(clean.run(plugin, host), FVLM_OK) << clean.error;
    for (std::size_t i = 0; i < 600; ++i) EXPECT_TRUE(std::isnan(arena.master[i])) << i;
    for (std::size_t i = 600; i < 1200; ++i) EXPECT_EQ(arena.master[i], clean.master[i]) << i;
  }
}

TEST_F(MuonTest, an_empty_arena_is_a_step_of_nothing) {
  Arena arena(plugin, {}, {usual});
  EXPECT_EQ(arena.run(plugin, host), FVLM_OK) << arena.error;
}

TEST_F(MuonTest, vectors_are_refused_with_their_segment) {
  ArenaShape shape = ragged_shape();
  shape.segments[3] = {shape.segments[3].offset, 1, 4, 0};
  Arena arena(plugin, shape, {usual, usual});
  const char* expected = "segment 3 is a vector: muon updates matrices only; use adamw for vectors";
  EXPECT_EQ(support_of(plugin, arena.query()).score, 0);
  EXPECT_STREQ(support_of(plugin, arena.query()).reason, expected);
  const std::vector<char> before = arena.bits();
  EXPECT_EQ(arena.run(plugin, host), FVLM_ERROR_UNSUPPORTED);
  EXPECT_EQ(arena.error, expected);
  EXPECT_EQ(arena.bits(), before);
}

TEST_F(MuonTest, too_little_workspace_is_refused_before_anything_is_written) {
  Arena arena(plugin, ragged_shape(), {usual, usual});
  const std::vector<char> before = arena.bits();
  arena.workspace_withheld = 1;
  EXPECT_EQ(arena.run(plugin, host), FVLM_ERROR_WORKSPACE) << arena.error;
  EXPECT_EQ(arena.bits(), before);
}

TEST_F(MuonTest, fifty_steps_equal_torch) {
  if (!python_has_torch()) GTEST_SKIP() << no_torch;
  const Oracle oracle("");
  ArenaShape shape;
  shape.groups = 2;
  for (const auto& [rows, cols] : {std::pair{33, 65}, {128, 48}, {96, 96}, {5, 1}, {200, 7}, {64, 130}}) {
    shape.segments.push_back({shape.elements, rows, cols, shape.segments.size() < 3 ? 0 : 1});
    shape.elements += rows * cols;
  }
  const std::vector<float> start = oracle.floats("start.f32"), gradients = oracle.floats("gradients.f32"),
                           float32 = oracle.floats("float32.f32"), bfloat16 = oracle.floats("bfloat16.f32"),
                           reordered = oracle.floats("reordered.f32"), momentum = oracle.floats("momentum.f32");
  Arena arena(plugin, shape, {group(1e-3f, 0.95f, 1, 0.1f, 0), group(1e-3f, 0.9f, 0, 0, 1)});
  Arena again = arena;
  const double worst = largest_difference_over_steps(arena, plugin, host, start, gradients, float32);
  EXPECT_LE(worst, 1e-6) << "torch.optim.Muon without its cast to bfloat16";
  for (std::size_t i = 0; i < momentum.size(); ++i) {
    const float ours = arena.states[0].get(static_cast<std::int64_t>(i));
    EXPECT_NEAR(ours, momentum[i], 1e-6 * std::fabs(momentum[i]) + 2e-5) << "momentum " << i;
  }

  // With its cast to bfloat16, torch does not reproduce its own results if its sums run in another order, so no other
  // implementation can match its digits. After 50 steps the difference is less than half the length of one step.
  const double rounding = largest_difference_over_steps(again, plugin, host, start, gradients, bfloat16);
  double itself = 0;
  for (std::size_t i = 0; i < bfloat16.size(); ++i)
    itself = std::max(itself, std::fabs(static_cast<double>(bfloat16[i]) - reordered[i]));
  std::printf("over 50 steps at lr 1e-3: from torch in float32 %.1e, from torch in bfloat16 %.1e; torch in bfloat16 "
              "from itself with its sums reordered %.1e\n",
              worst, rounding, itself);
  EXPECT_GT(itself, 1e-6);
  EXPECT_LE(rounding, 5e-4);
}

} // namespace
} // namespace fvlm::testing
