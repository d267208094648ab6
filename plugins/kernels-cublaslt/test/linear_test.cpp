// linear_test.cpp: tests of the linear that plugin check does not make: algorithms selected by measurement, and how
// prepare() relates to calls.
#include "common/testing/gelu.h"
#include "common/testing/guarded.h"

#include <optional>

namespace fvlm::testing {
namespace {

using Numbers = std::vector<double>;

struct Shape {
  int64_t rows, inner, width;
  fvlm_dtype dtype = bf16, gradient = bf16;
  int64_t gap = 0;
  bool bias = true, gelu = false, gelu_before = false, accumulate = false, sums = false, residual = false;
  uint32_t form = 0; // of GELU: FVLM_QUICK_GELU, FVLM_GELU_TANH, or 0 for the exact one
};

class Linear : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!test_device().missing.empty()) GTEST_SKIP() << test_device().missing;
  }
};

// A plugin instance that is used for one shape.
class Bench {
 public:
  explicit Bench(const Shape& s, Host::Kept* kept = nullptr)
      : host_(2, kept), plugin_(FVLM_TEST_LIBRARY, FVLM_KERNELS_KIND, host_) {
    query_.struct_size = sizeof query_;
    query_.op = FVLM_OP_LINEAR;
    query_.device = test_device().device;
    query_.dtype = s.dtype, query_.gradient_dtype = s.gradient;
    query_.options = FVLM_WITH_BACKWARD | s.form;
    if (s.bias) query_.options |= FVLM_WITH_BIAS;
    if (s.gelu) query_.options |= FVLM_WITH_GELU;
    if (s.sums) query_.options |= FVLM_WITH_COLUMN_SUMS;
    if (s.residual) query_.options |= FVLM_WITH_RESIDUAL;
    query_.rows = s.rows, query_.inner = s.inner, query_.width = s.width;
    needs_.struct_size = sizeof needs_;
    EXPECT_EQ(plugin_->requirements(plugin_.instance(), &query_, &needs_, nullptr), FVLM_OK);
    call_.emplace(host_, std::max({needs_.forward_workspace, needs_.backward_workspace, needs_.prepare_workspace}));
  }
  void prepare(uint32_t flags) {
    Call& call = *call_;
    call->flags = flags;
    EXPECT_EQ(plugin_->prepare(plugin_.instance(), call.get(), &query_), FVLM_OK) << call.error();
    test_device().wait();
    EXPECT_TRUE(call.intact());
  }
  template <class Arguments>
  void run(fvlm_status (*fvlm_kernels_v1::*function)(fvlm_instance*, const fvlm_call*, const fvlm_kernels_query*,
                                                     const Arguments*),
           Arguments arguments, uint32_t flags) {
    EXPECT_EQ(status_of(function, arguments, flags), FVLM_OK) << error_;
  }
  template <class Arguments>
  fvlm_status status_of(fvlm_status (*fvlm_kernels_v1::*function)(fvlm_instance*, const fvlm_call*,
                                                                  const fvlm_kernels_query*, const Arguments*),
                        Arguments& arguments, uint32_t flags) {
    arguments.struct_size = sizeof arguments;
    Call& call = *call_;
    call->flags = flags;
    const fvlm_status status = (plugin_.operator->()->*function)(plugin_.instance(), call.get(), &query_, &arguments);
    test_device().wait();
    EXPECT_TRUE(call.intact());
    error_ = call.error();
    return status;
  }
  const std::string& error() const { return error_; }
  int measurements() const { return host_.lines_with("timed on"); }

 private:
  Host host_;
  Plugin<fvlm_kernels_v1> plugin_;
  fvlm_kernels_query query_{};
  fvlm_requirements needs_{};
  std::optional<Call> call_; // shared, because allocating the workspace takes long
  std::string error_;
};

struct Operands {
  GuardedTensor x, weight, bias, y, pre, d_y, before, d_x, d_weight, d_bias, residual;

  explicit Operands(const Shape& s)
      : x(s.dtype, {s.rows, s.inner}, s.gap), weight(s.dtype, {s.width, s.inner}), bias(s.dtype, {s.width}),
        y(s.dtype, {s.rows, s.width}, s.gap), pre(s.dtype, {s.rows, s.width}), d_y(s.dtype, {s.rows, s.width}, s.gap),
        before(s.dtype, {s.rows, s.inner}), d_x(s.dtype, {s.rows, s.inner}, s.gap),
        d_weight(s.gradient, {s.width, s.inner}), d_bias(s.gradient, {s.width}),
        residual(s.dtype, {s.rows, s.width}, s.gap) {
    x.random(1), weight.random(2, 1 / std::sqrt(static_cast<float>(s.inner))), bias.random(3), d_y.random(4);
    before.random(5), residual.random(6), d_weight.fill(0.5), d_bias.fill(0.5), y.fill(99), pre.fill(99), d_x.fill(99);
  }
  void expect_intact() const {
    for (const GuardedTensor* each : {&x, &y, &pre, &d_y, &d_x, &d_weight, &d_bias}) each->expect_intact("a tensor");
  }
};

fvlm_linear_forward forward_of(const Shape& s, Operands& o) {
  return {0,
          o.x.get(),
          o.weight.get(),
          s.bias ? o.bias.get() : nullptr,
          o.y.get(),
          s.gelu ? o.pre.get() : nullptr,
          s.residual ? o.residual.get() : nullptr};
}
fvlm_linear_input_gradient input_gradient_of(const Shape& s, Operands& o) {
  return {0, o.d_y.get(), o.weight.get(), s.gelu_before ? o.before.get() : nullptr, o.d_x.get()};
}
fvlm_linear_weight_gradient weight_gradient_of(const Shape& s, Operands& o) {
  return {0, s.accumulate, o.d_y.get(), o.x.get(), o.d_weight.get(), s.bias ? o.d_bias.get() : nullptr};
}

// Returns the input gradient.
Numbers expect_right(const Shape& s, Operands& o) {
  const auto rows = static_cast<size_t>(s.rows), inner = static_cast<size_t>(s.inner),
             width = static_cast<size_t>(s.width);
  const std::vector<float> x = o.x.values(), weight = o.weight.values(), d_y = o.d_y.values();
  const double begin = s.accumulate ? 0.5 : 0;
  Numbers y(rows * width), d_x(rows * inner), d_weight(width * inner, begin), d_bias(width, begin);
  for (size_t r = 0; r < rows; ++r)
    for (size_t w = 0; w < width; ++w) {
      const double d = d_y[r * width + w];
      double sum = s.bias ? o.bias.value(static_cast<int64_t>(w)) : 0.0;
      if (s.residual) sum += o.residual.value(static_cast<int64_t>(r * width + w));
      for (size_t i = 0; i < inner; ++i) {
        sum += static_cast<double>(x[r * inner + i]) * weight[w * inner + i];
        d_x[r * inner + i] += d * weight[w * inner + i];
        d_weight[w * inner + i] += d * x[r * inner + i];
      }
      y[r * width + w] = sum;
      d_bias[w] += d;
    }
  if (s.gelu_before)
    for (size_t i = 0; i < d_x.size(); ++i) d_x[i] *= gelu_at(o.before.value(static_cast<int64_t>(i)), s.form).second;
  // Sums of a thousand products reach 700 on the way, where float32 has steps of 6e-5.
  const double rounding = s.dtype.bits == 16 ? 8e-3 : 3e-5, gradient_rounding = s.gradient.bits == 16 ? 8e-3 : 1.5e-4;
  if (s.gelu) {
    expect_close(o.pre, y, rounding, "pre_activation");
    for (double& each : y) each = gelu_at(each, s.form).first;
  }
  expect_close(o.y, y, 2 * rounding, "y");
  expect_close(o.d_x, d_x, 2 * rounding, "d_x");
  expect_close(o.d_weight, d_weight, gradient_rounding, "d_weight");
  if (s.bias) expect_close(o.d_bias, d_bias, gradient_rounding, "d_bias");
  return d_x;
}

void run_all(const Shape& s, Bench& bench, Operands& o, uint32_t flags) {
  bench.run(&fvlm_kernels_v1::linear_forward, forward_of(s, o), flags);
  bench.run(&fvlm_kernels_v1::linear_input_gradient, input_gradient_of(s, o), flags);
  bench.run(&fvlm_kernels_v1::linear_weight_gradient, weight_gradient_of(s, o), flags);
}

TEST_F(Linear, what_was_chosen_by_measurement_agrees_with_float64_loops) {
  for (const Shape& s : std::vector<Shape>{{256, 96, 160},
                                           {256, 96, 160, bf16, f32, 0, true, true},
                                           {1088, 64, 96, bf16, f32, 0, false, false, false, true},
                                           {600, 128, 64, bf16, bf16, 8, true, true, true, true},
                                           {300, 33, 70, bf16, f32, 3, true, true, true},
                                           {1, 48, 24},
                                           {512, 96, 96, bf16, f32, 0, true, false, false, false, false, true},
                                           {300, 33, 70, bf16, f32, 3, true, false, false, false, false, true},
                                           {90, 64, 48, f32, f32, 4, false, false, false, false, false, true},
                                           {200, 64, 48, f32, f32, 4, true, true, true},
                                           {64, 7, 5, f32, f32, 0, true, false, false, true}}) {
    SCOPED_TRACE(std::to_string(s.rows) + " x " + std::to_string(s.inner) + " -> " + std::to_string(s.width));
    Bench bench(s);
    bench.prepare(0);
    Operands o(s);
    run_all(s, bench, o, 0);
    expect_right(s, o);
    o.expect_intact();
  }
}

TEST_F(Linear, calls_of_either_determinism_use_what_was_prepared_for_the_other) {
  const Shape s{128, 64, 64};
  for (const uint32_t prepared : {0u, uint32_t{FVLM_DETERMINISTIC}}) {
    Bench bench(s);
    bench.prepare(prepared);
    Operands first(s), second(s);
    run_all(s, bench, first, prepared);
    run_all(s, bench, second, prepared ^ FVLM_DETERMINISTIC);
    expect_right(s, first);
    EXPECT_EQ(first.y.values(), second.y.values());
    EXPECT_EQ(first.d_weight.values(), second.d_weight.values());
  }
}

TEST_F(Linear, two_instances_take_the_same_algorithms_where_the_call_is_deterministic) {
  const Shape s{640, 192, 320};
  Operands first(s), second(s);
  for (Operands* each : {&first, &second}) {
    Bench bench(s);
    bench.prepare(FVLM_DETERMINISTIC);
    run_all(s, bench, *each, FVLM_DETERMINISTIC);
  }
  EXPECT_EQ(first.y.values(), second.y.values());
  EXPECT_EQ(first.d_x.values(), second.d_x.values());
  EXPECT_EQ(first.d_weight.values(), second.d_weight.values());
}

TEST_F(Linear, what_one_process_measured_another_does_not_measure_again) {
  const Shape s{640, 192, 320}, similar{1000, 192, 320}, other{640, 192, 256};
  Host::Kept kept;
  Operands first(s), second(s), third(similar);
  Bench measures(s, &kept);
  measures.prepare(0);
  EXPECT_GT(measures.measurements(), 0);
  EXPECT_EQ(kept.size(), 1U);
  run_all(s, measures, first, 0);
  Bench knows(s, &kept);
  knows.prepare(0);
  EXPECT_EQ(knows.measurements(), 0);
  run_all(s, knows, second, 0);
  EXPECT_EQ(first.y.values(), second.y.values());
  EXPECT_EQ(first.d_x.values(), second.d_x.values());
  EXPECT_EQ(first.d_weight.values(), second.d_weight.values());
  Bench of_its_class(similar, &kept);
  of_its_class.prepare(0);
  EXPECT_EQ(of_its_class.measurements(), 0);
  run_all(similar, of_its_class, third, 0);
  expect_right(similar, third);
  Bench of_another(other, &kept);
  of_another.prepare(0);
  EXPECT_GT(of_another.measurements(), 0);
}

TEST_F(Linear, deterministic_calls_keep_nothing) {
  Host::Kept kept;
  Bench bench({640, 192, 320}, &kept);
  bench.prepare(FVLM_DETERMINISTIC);
  EXPECT_EQ(bench.measurements(), 0);
  EXPECT_TRUE(kept.empty());
}

// With GELU and its derivative, kept and not, and with column sums that are added to what they hold.
void expect_gelu_right(const Shape& s) {
  SCOPED_TRACE(std::to_string(s.rows) + " x " + std::to_string(s.inner) + " -> " + std::to_string(s.width));
  Shape with_gelu = s;
  with_gelu.gelu = with_gelu.gelu_before = with_gelu.sums = true;
  Bench bench(with_gelu);
  bench.prepare(FVLM_DETERMINISTIC);
  Operands o(with_gelu), again(with_gelu);
  run_all(with_gelu, bench, o, FVLM_DETERMINISTIC);
  const Numbers d_x = expect_right(with_gelu, o);
  o.expect_intact();
  auto without = forward_of(with_gelu, again);
  without.pre_activation = nullptr;
  bench.run(&fvlm_kernels_v1::linear_forward, without, FVLM_DETERMINISTIC);
  GuardedTensor sums(s.gradient, {s.inner});
  sums.fill(0.5);
  auto summing = input_gradient_of(with_gelu, again);
  summing.accumulate = 1, summing.d_x_sums = sums.get();
  bench.run(&fvlm_kernels_v1::linear_input_gradient, summing, FVLM_DETERMINISTIC);
  again.expect_intact();
  sums.expect_intact("d_x_sums");
  Numbers sum(static_cast<size_t>(s.inner), 0.5);
  for (size_t i = 0; i < d_x.size(); ++i) sum[i % sum.size()] += d_x[i];
  // Without fusion the summed values were rounded first.
  expect_close(sums, sum, s.width <= 384 || s.rows >= 1024 ? 8e-3 : 0.1, "d_x_sums");
  EXPECT_EQ(again.y.values(), o.y.values());
  EXPECT_EQ(again.d_x.values(), o.d_x.values());
}

// Deterministic calls use the fused GEMMs with GELU or its derivative wherever they apply: an inner size up to 384 or
// many rows, and aligned operands.
TEST_F(Linear, gelu_and_its_derivative_agree_with_float64_loops_on_tiles_of_all_kinds) {
  for (const Shape& s : std::vector<Shape>{{1, 64, 64},
                                           {63, 384, 128},
                                           {64, 64, 384, bf16, f32, 8},
                                           {129, 128, 320, bf16, bf16, 16, false},
                                           {1285, 200, 72, bf16, bf16, 8},
                                           {130, 384, 3072},
                                           {130, 3072, 384},
                                           {50001, 72, 8}}) // several tiles per block
    expect_gelu_right(s);
}

TEST_F(Linear, all_forms_of_gelu_agree_with_float64_loops_where_the_weight_is_streamed) {
  for (const Shape& s : std::vector<Shape>{
           {.rows = 1024, .inner = 392, .width = 200},
           {.rows = 1024, .inner = 40, .width = 392, .gradient = f32},
           {.rows = 1285, .inner = 200, .width = 136, .gradient = f32, .gap = 8, .form = FVLM_GELU_TANH},
           {.rows = 1100, .inner = 72, .width = 264, .bias = false, .form = FVLM_QUICK_GELU},
           {.rows = 9000, .inner = 40, .width = 72, .dtype = f16, .gradient = f32, .form = FVLM_GELU_TANH},
           {.rows = 60001, .inner = 8, .width = 72, .form = FVLM_GELU_TANH}, // several tiles per block
       })
    expect_gelu_right(s);
}

// Deterministic calls use a custom kernel if there is one.
void expect_right_twice(const Shape& s) {
  SCOPED_TRACE(std::to_string(s.rows) + " x " + std::to_string(s.inner) + " -> " + std::to_string(s.width));
  Operands first(s), again(s);
  for (Operands* each : {&first, &again}) {
    Bench bench(s);
    bench.prepare(FVLM_DETERMINISTIC);
    run_all(s, bench, *each, FVLM_DETERMINISTIC);
    each->expect_intact();
  }
  expect_right(s, first);
  EXPECT_EQ(first.y.values(), again.y.values());
  EXPECT_EQ(first.d_x.values(), again.d_x.values());
}

TEST_F(Linear, products_of_few_rows_agree_with_float64_loops_and_have_the_same_bits_again) {
  for (const Shape& s : std::vector<Shape>{{1, 8, 8},
                                           {1, 1, 1},
                                           {1, 2056, 2040, bf16, f32, 0, false},
                                           {2, 3072, 16, bf16, f32, 8},
                                           {3, 1536, 576, bf16, f32, 8, true, false, true},
                                           {5, 576, 576, bf16, bf16, 8, true, false, false, false, false, true},
                                           {8, 576, 960, bf16, bf16, 8, true, true},
                                           {15, 40, 24, bf16, f32, 0, false},
                                           {17, 33, 70, bf16, f32, 3, true, true, true},
                                           {33, 1000, 40, bf16, f32, 0, true, false, false, false, false, true},
                                           {63, 70, 33, bf16, bf16, 1, true, false, false, false, false, true},
                                           {64, 576, 960},
                                           {64, 576, 3072, bf16, bf16, 8, false},
                                           {64, 3072, 576, bf16, bf16, 16, false, false, true},
                                           {64, 384, 1536, bf16, bf16, 0, true, true, true, true, true},
                                           {64, 1536, 384, bf16, f32, 0, true, true, true, true, true},
                                           {65, 1544, 200, bf16, f32, 8, true, true},
                                           {128, 576, 576, bf16, bf16, 0, false, false, false, false, false, true},
                                           {130, 200, 1032, bf16, f32, 8, true, true, true}}) {
    expect_right_twice(s);
  }
}

TEST_F(Linear, products_of_short_rows_agree_with_float64_loops_and_have_the_same_bits_again) {
  for (const Shape& s : std::vector<Shape>{
           {.rows = 700, .inner = 8, .width = 384},
           {.rows = 1400, .inner = 384, .width = 24, .gradient = f32, .bias = false},
           {.rows = 711, .inner = 384, .width = 1152, .gap = 8},
           {.rows = 999, .inner = 72, .width = 200, .residual = true},
           {.rows = 800, .inner = 384, .width = 384, .gap = 16, .residual = true},
           {.rows = 1100, .inner = 320, .width = 136, .bias = false, .residual = true},
       })
    expect_right_twice(s);
}

// Gradients for a shape, with a plugin instance of their own.
struct Gradients {
  GuardedTensor x, d_y, d_weight, d_bias;

  Gradients(const Shape& s, uint32_t flags)
      : x(s.dtype, {s.rows, s.inner}, s.gap), d_y(s.dtype, {s.rows, s.width}, s.gap),
        d_weight(s.gradient, {s.width, s.inner}), d_bias(s.gradient, {s.width}) {
    x.random(1), d_y.random(2), d_weight.fill(0.5), d_bias.fill(0.5);
    Bench bench(s);
    bench.prepare(flags);
    const fvlm_linear_weight_gradient arguments{0,       s.accumulate,   d_y.get(),
                                                x.get(), d_weight.get(), s.bias ? d_bias.get() : nullptr};
    bench.run(&fvlm_kernels_v1::linear_weight_gradient, arguments, flags);
    d_weight.expect_intact("d_weight");
    d_bias.expect_intact("d_bias");
  }
  void expect_right(const Shape& s) const {
    const auto inner = static_cast<size_t>(s.inner), width = static_cast<size_t>(s.width);
    const std::vector<float> xs = x.values(), d_ys = d_y.values();
    Numbers weights(width * inner, s.accumulate ? 0.5 : 0), biases(width, s.accumulate || !s.bias ? 0.5 : 0);
    for (size_t r = 0; r < static_cast<size_t>(s.rows); ++r)
      for (size_t w = 0; w < width; ++w) {
        const double d = d_ys[r * width + w];
        for (size_t i = 0; i < inner; ++i) weights[w * inner + i] += d * xs[r * inner + i];
        if (s.bias) biases[w] += d;
      }
    const double rounding = s.gradient.bits == 16 ? 8e-3 : 1.5e-4;
    expect_close(d_weight, weights, rounding, "d_weight");
    expect_close(d_bias, biases, rounding, "d_bias");
  }
};

// Deterministic calls use the custom weight gradient wherever it applies: many rows, features that fill its tiles,
// aligned operands.
TEST_F(Linear, weight_gradients_over_many_rows_agree_with_float64_loops_and_have_the_same_bits_again) {
  for (const Shape& s : std::vector<Shape>{{8192, 384, 192, bf16, f32},
                                           {8205, 184, 376, bf16, bf16, 8, true, false, false, true},
                                           {8250, 376, 184, bf16, f32, 16, false}}) {
    SCOPED_TRACE(std::to_string(s.rows) + " x " + std::to_string(s.inner) + " -> " + std::to_string(s.width));
    const Gradients first(s, FVLM_DETERMINISTIC), again(s, FVLM_DETERMINISTIC);
    first.expect_right(s);
    EXPECT_EQ(first.d_weight.values(), again.d_weight.values());
    EXPECT_EQ(first.d_bias.values(), again.d_bias.values());
  }
}

TEST_F(Linear, weight_gradients_over_many_rows_agree_with_float64_loops_where_the_copy_engine_cannot_read_rows) {
  const Shape s{8200, 376, 192, bf16, f32, 3};
  Gradients(s, 0).expect_right(s); // prepare() times the custom kernel as well
}

TEST_F(Linear, refuses_a_shape_that_prepare_has_not_seen) {
  const Shape s{40, 16, 24};
  Bench bench(s);
  Operands o(s);
  fvlm_linear_forward arguments = forward_of(s, o);
  EXPECT_EQ(bench.status_of(&fvlm_kernels_v1::linear_forward, arguments, 0), FVLM_ERROR_ARGUMENT);
  EXPECT_NE(bench.error().find("40 rows of 16 -> 24"), std::string::npos) << bench.error();
}

} // namespace
} // namespace fvlm::testing
