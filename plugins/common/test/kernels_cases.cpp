// kernels_cases.cpp: tests every operation of a kernels plugin against plain float64 loops, at the edges of the
// contract. Built for kernels-cpu and for kernels-cuda.
#include "common/testing/gelu.h"
#include "common/testing/guarded.h"

#include <cmath>
#include <functional>
#include <limits>
#include <tuple>

namespace fvlm::testing {
namespace {

using KernelsTable = Plugin<fvlm_kernels_v1>;
using Numbers = std::vector<double>;

struct Shape {
  const char* name;
  int64_t rows, width;
  fvlm_dtype dtype = f32;
  int64_t row_gap = 0;
  int threads = 2;
};

std::vector<Shape> shapes() {
  std::vector<Shape> all{{"one number", 1, 1},
                         {"no rows", 0, 16},
                         {"less than a vector", 3, 5},
                         {"one row", 1, 576},
                         {"even", 70, 64},
                         {"odd", 33, 101},
                         {"many rows", 700, 48},
                         {"strided", 40, 37, f32, 6},
                         {"bfloat16", 35, 80, bf16},
                         {"bfloat16, odd, strided", 40, 37, bf16, 6}};
  if (test_device().device.type == FVLM_CUDA) // each has a kernel of its own
    for (const Shape& wide : std::vector<Shape>{{"384", 19, 384, bf16},
                                                {"576, strided", 67, 576, bf16, 16},
                                                {"960", 9, 960, bf16},
                                                {"1536", 5, 1536, bf16, 1536},
                                                {"4096", 5, 4096, bf16},
                                                {"8192", 3, 8192, bf16},
                                                {"20000", 2, 20000, bf16},
                                                {"384 in float32", 9, 384, f32},
                                                {"1536 in float32", 5, 1536, f32, 4},
                                                {"4096 in float32", 3, 4096, f32},
                                                {"8192 in float32", 3, 8192, f32},
                                                {"hundreds of rows", 140, 1048, bf16},
                                                {"a thousand rows, strided", 1100, 584, bf16, 8},
                                                {"thousands of rows", 5000, 64, bf16}})
      all.push_back(wide);
  return all;
}

Numbers doubles(const GuardedTensor& tensor) {
  const auto values = tensor.values();
  return {values.begin(), values.end()};
}

GuardedTensor rows_like(const Shape& s, unsigned seed, float scale = 1) {
  GuardedTensor tensor(s.dtype, {s.rows, s.width}, s.row_gap);
  tensor.random(seed, scale);
  return tensor;
}

GuardedTensor parameter_like(const Shape& s, unsigned seed) {
  GuardedTensor tensor(s.dtype, {s.width});
  tensor.random(seed);
  return tensor;
}

double tolerance(const Shape& s) {
  return s.dtype.bits == 16 ? 6e-3 : 3e-6;
}

class Kernels : public ::testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    if (!test_device().missing.empty()) GTEST_SKIP() << test_device().missing;
    setenv("FVLM_CPU_LEVEL", GetParam().c_str(), 1);
  }
  void TearDown() override { unsetenv("FVLM_CPU_LEVEL"); }
};

fvlm_kernels_query query_of(const Shape& s, int32_t op) {
  fvlm_kernels_query query{};
  query.struct_size = sizeof query;
  query.op = op;
  query.device = test_device().device;
  query.dtype = s.dtype;
  query.gradient_dtype = f32;
  query.options = FVLM_WITH_BACKWARD;
  query.rows = s.rows;
  query.width = s.width;
  query.epsilon = 1e-5f;
  return query;
}

// The plugin, host and requirements for one operation.
struct Bench {
  Bench(const Shape& s, int32_t op)
      : host(s.threads), plugin(FVLM_TEST_LIBRARY, FVLM_KERNELS_KIND, host), query(query_of(s, op)) {}
  void ask() {
    needs.struct_size = sizeof needs;
    EXPECT_GT(support_of(plugin, query).score, 0) << support_of(plugin, query).reason;
    EXPECT_EQ(plugin->requirements(plugin.instance(), &query, &needs, nullptr), FVLM_OK);
  }
  template <class Arguments>
  void run(fvlm_status (*function)(fvlm_instance*, const fvlm_call*, const fvlm_kernels_query*, const Arguments*),
           Arguments& arguments, uint64_t workspace) {
    arguments.struct_size = sizeof arguments;
    Call call(host, workspace);
    EXPECT_EQ(function(plugin.instance(), call.get(), &query, &arguments), FVLM_OK) << call.error();
    test_device().wait();
    EXPECT_TRUE(call.intact());
  }
  Host host;
  KernelsTable plugin;
  fvlm_kernels_query query;
  fvlm_requirements needs{};
};

struct Norm {
  Numbers y, s, d_x, d_weight, d_bias;
};

Norm norm(const Shape& s, bool centered, const Numbers& x, const Numbers& residual, const Numbers& weight,
          const Numbers& bias, const Numbers& d_y, const Numbers& d_sum) {
  Norm n{x, x, x, Numbers(weight.size()), Numbers(weight.size())};
  const auto width = static_cast<size_t>(s.width);
  for (size_t r = 0; r < static_cast<size_t>(s.rows); ++r) {
    double mean = 0, variance = 0, along = 0, total = 0;
    for (size_t i = r * width; i < (r + 1) * width; ++i) {
      if (!residual.empty()) {
        const double sum = x[i] + residual[i];
        n.s[i] = s.dtype.bits == 16 ? widen_bf16(rounded_bf16(static_cast<float>(sum))) : sum;
      }
      mean += centered ? n.s[i] / s.width : 0;
    }
    for (size_t i = r * width; i < (r + 1) * width; ++i) variance += (n.s[i] - mean) * (n.s[i] - mean) / s.width;
    const double inverse = 1 / std::sqrt(variance + 1e-5f);
    for (size_t c = 0; c < width; ++c) {
      const size_t i = r * width + c;
      const double normal = (n.s[i] - mean) * inverse;
      n.y[i] = normal * weight[c] + (centered ? bias[c] : 0);
      along += d_y[i] * weight[c] * normal / s.width;
      total += centered ? d_y[i] * weight[c] / s.width : 0;
      n.d_weight[c] += d_y[i] * normal;
      n.d_bias[c] += d_y[i];
    }
    for (size_t c = 0; c < width; ++c) {
      const size_t i = r * width + c;
      const double normal = (n.s[i] - mean) * inverse;
      n.d_x[i] = (d_y[i] * weight[c] - normal * along - total) * inverse + (d_sum.empty() ? 0 : d_sum[i]);
    }
  }
  return n;
}

enum Alias { nothing, with_x, with_residual };

void check_norm(const Shape& s, bool centered, bool residual, Alias alias, bool accumulate, fvlm_dtype gradient,
                bool frozen) {
  SCOPED_TRACE(std::string(s.name) + (centered ? ", layernorm" : ", rmsnorm") + (residual ? ", residual" : "") +
               (accumulate ? ", accumulate" : "") + (frozen ? ", frozen" : ""));
  Bench bench(s, centered ? FVLM_OP_LAYERNORM : FVLM_OP_RMSNORM);
  bench.query.gradient_dtype = gradient;
  if (residual) bench.query.options |= FVLM_WITH_RESIDUAL;
  bench.ask();
  GuardedTensor x = rows_like(s, 1), other = rows_like(s, 2), weight = parameter_like(s, 3),
                bias = parameter_like(s, 4);
  GuardedTensor d_y = rows_like(s, 5), d_sum = rows_like(s, 6);
  const Norm n = norm(s, centered, doubles(x), residual ? doubles(other) : Numbers(), doubles(weight), doubles(bias),
                      doubles(d_y), residual ? doubles(d_sum) : Numbers());
  GuardedTensor y = rows_like(s, 7), own_sum = rows_like(s, 8), inverse(f32, {s.rows}), mean(f32, {s.rows});
  GuardedTensor& sum = alias == with_x ? x : alias == with_residual ? other : own_sum;
  fvlm_norm_forward f{};
  f.x = x.get(), f.weight = weight.get(), f.bias = centered ? bias.get() : nullptr, f.y = y.get();
  if (residual) f.residual = other.get(), f.sum = sum.get();
  f.saved[0] = inverse.get(), f.saved[1] = centered ? mean.get() : nullptr;
  bench.run(centered ? bench.plugin->layernorm_forward : bench.plugin->rmsnorm_forward, f,
            bench.needs.forward_workspace);
  expect_close(y, n.y, tolerance(s) * 2, "y");
  if (residual) expect_close(sum, n.s, s.dtype.bits == 16 ? 1e-6 : 1e-7, "sum");

  GuardedTensor own_d_x = rows_like(s, 9), d_weight(gradient, {s.width}), d_bias(gradient, {s.width});
  d_weight.fill(accumulate ? 0.5 : 99), d_bias.fill(accumulate ? 0.5 : 99);
  GuardedTensor& d_x = alias == with_x ? d_y : alias == with_residual && residual ? d_sum : own_d_x;
  fvlm_norm_backward b{};
  b.accumulate = accumulate;
  b.d_y = d_y.get(), b.d_sum = residual ? d_sum.get() : nullptr, b.s = residual ? sum.get() : x.get();
  b.weight = weight.get(), b.d_x = d_x.get();
  if (!frozen) b.d_weight = d_weight.get(), b.d_bias = centered ? d_bias.get() : nullptr;
  b.saved[0] = inverse.get(), b.saved[1] = centered ? mean.get() : nullptr;
  bench.run(centered ? bench.plugin->layernorm_backward : bench.plugin->rmsnorm_backward, b,
            bench.needs.backward_workspace);
  expect_close(d_x, n.d_x, tolerance(s) * 3, "d_x");
  if (!frozen) {
    Numbers expected = n.d_weight, expected_bias = n.d_bias;
    for (double& e : expected) e += accumulate ? 0.5 : 0;
    for (double& e : expected_bias) e += accumulate ? 0.5 : 0;
    expect_close(d_weight, expected, gradient.bits == 16 ? 6e-3 : 2e-5, "d_weight");
    if (centered) expect_close(d_bias, expected_bias, gradient.bits == 16 ? 6e-3 : 2e-5, "d_bias");
  }
  for (const GuardedTensor* t : {&y, &sum, &d_x, &d_weight, &d_bias, &inverse, &mean}) t->expect_intact("an output");
}

TEST_P(Kernels, norms_agree_with_float64_loops) {
  for (const Shape& s : shapes())
    for (const bool centered : {false, true}) {
      check_norm(s, centered, false, nothing, false, f32, false);
      check_norm(s, centered, true, nothing, true, f32, false);
      check_norm(s, centered, true, with_x, false, s.dtype, false);
      check_norm(s, centered, true, with_residual, false, f32, true);
    }
}

TEST_P(Kernels, layernorm_keeps_its_digits_beside_a_large_mean) {
  const Shape s{"", 4, 100};
  GuardedTensor x = rows_like(s, 1), weight = parameter_like(s, 2), bias = parameter_like(s, 3), y = rows_like(s, 4);
  for (int64_t i = 0; i < x.count(); ++i) x.set(i, x.value(i) + 1000);
  const Numbers nothing_at_all(static_cast<size_t>(x.count()));
  const Norm n = norm(s, true, doubles(x), {}, doubles(weight), doubles(bias), nothing_at_all, {});
  Bench bench(s, FVLM_OP_LAYERNORM);
  bench.query.options = 0;
  bench.ask();
  fvlm_norm_forward f{};
  f.x = x.get(), f.weight = weight.get(), f.bias = bias.get(), f.y = y.get();
  bench.run(bench.plugin->layernorm_forward, f, bench.needs.forward_workspace);
  expect_close(y, n.y, 3e-4, "y"); // x itself has a rounding error of 6e-5
}

TEST_P(Kernels, swiglu_agrees_with_float64_loops) {
  for (const Shape& s : shapes())
    for (const auto& [alias, form] :
         {std::pair(false, 0U), {true, 0U}, {false, FVLM_GELU_TANH}, {true, FVLM_GELU_TANH}}) {
      SCOPED_TRACE(std::string(s.name) + (alias ? ", gradients over inputs" : "") + (form ? ", geglu" : ""));
      Bench bench(s, FVLM_OP_SWIGLU);
      bench.query.options |= form;
      bench.ask();
      GuardedTensor gate = rows_like(s, 1, 4), up = rows_like(s, 2), d_y = rows_like(s, 3), y = rows_like(s, 4);
      if (s.rows > 0) gate.set(0, -200), gate.set(gate.count() - 1, 200);
      Numbers e_y = doubles(gate), e_gate = e_y, e_up = e_y;
      for (size_t i = 0; i < e_y.size(); ++i) {
        const auto at = static_cast<int64_t>(i);
        const double g = gate.value(at), u = up.value(at), d = d_y.value(at), sigmoid = 1 / (1 + std::exp(-g));
        const auto [active, slope] =
            form ? gelu_at(g, form) : std::pair(g * sigmoid, sigmoid * (1 + g * (1 - sigmoid)));
        e_y[i] = active * u;
        e_gate[i] = d * u * slope;
        e_up[i] = d * active;
      }
      fvlm_swiglu_forward f{};
      f.gate = gate.get(), f.up = up.get(), f.y = y.get();
      bench.run(bench.plugin->swiglu_forward, f, bench.needs.forward_workspace);
      expect_close(y, e_y, tolerance(s), "y");
      GuardedTensor own_gate = rows_like(s, 5), own_up = rows_like(s, 6);
      GuardedTensor &d_gate = alias ? gate : own_gate, &d_up = alias ? up : own_up;
      fvlm_swiglu_backward b{};
      b.gate = gate.get(), b.up = up.get(), b.d_y = d_y.get(), b.d_gate = d_gate.get(), b.d_up = d_up.get();
      bench.run(bench.plugin->swiglu_backward, b, bench.needs.backward_workspace);
      expect_close(d_gate, e_gate, tolerance(s), "d_gate");
      expect_close(d_up, e_up, tolerance(s), "d_up");
      for (const GuardedTensor* t : {&y, &d_gate, &d_up}) t->expect_intact("an output");
    }
}

TEST_P(Kernels, bias_gelu_agrees_with_float64_loops) {
  for (const Shape& s : shapes())
    for (const bool with_bias : {false, true})
      for (const bool accumulate : {false, true}) {
        SCOPED_TRACE(std::string(s.name) + (with_bias ? ", bias" : "") + (accumulate ? ", accumulate" : ""));
        Bench bench(s, FVLM_OP_BIAS_GELU);
        if (with_bias) bench.query.options |= FVLM_WITH_BIAS;
        bench.ask();
        GuardedTensor x = rows_like(s, 1, 2), bias = parameter_like(s, 2), d_y = rows_like(s, 3), y = rows_like(s, 4);
        if (s.rows > 0) x.set(0, -30), x.set(x.count() - 1, 30);
        Numbers e_y = doubles(x), e_d = e_y, e_bias(static_cast<size_t>(s.width), accumulate ? 0.5 : 0.0);
        for (size_t i = 0; i < e_y.size(); ++i) {
          const size_t c = i % static_cast<size_t>(s.width);
          const double v = e_y[i] + (with_bias ? bias.value(static_cast<int64_t>(c)) : 0.0);
          std::tie(e_y[i], e_d[i]) = gelu_at(v, 0);
          e_d[i] *= d_y.value(static_cast<int64_t>(i));
          e_bias[c] += e_d[i];
        }
        fvlm_bias_gelu_forward f{};
        f.x = x.get(), f.bias = with_bias ? bias.get() : nullptr, f.y = y.get();
        bench.run(bench.plugin->bias_gelu_forward, f, bench.needs.forward_workspace);
        expect_close(y, e_y, tolerance(s), "y");
        GuardedTensor d_bias(f32, {s.width});
        d_bias.fill(accumulate ? 0.5 : 99);
        fvlm_bias_gelu_backward b{};
        b.accumulate = accumulate;
        b.x = x.get(), b.bias = f.bias, b.d_y = d_y.get(), b.d_x = d_y.get(); // in place
        b.d_bias = with_bias ? d_bias.get() : nullptr;
        bench.run(bench.plugin->bias_gelu_backward, b, bench.needs.backward_workspace);
        expect_close(d_y, e_d, tolerance(s), "d_x");
        if (with_bias) expect_close(d_bias, e_bias, 2e-5, "d_bias");
        for (const GuardedTensor* t : {&y, &d_y, &d_bias}) t->expect_intact("an output");
      }
}

// The number that 16 bits encode with that many mantissa bits; 0 for infinities and NaN.
double number_of(int64_t bits, int mantissa) {
  const int bias = (1 << (14 - mantissa)) - 1, one = 1 << mantissa;
  const int exponent = static_cast<int>(bits & 0x7fff) >> mantissa, fraction = static_cast<int>(bits) & (one - 1);
  if (exponent > 2 * bias) return 0;
  const double size = std::ldexp(exponent ? fraction + one : fraction, std::max(exponent, 1) - bias - mantissa);
  return bits & 0x8000 ? -size : size;
}

// Rounding alone causes an error of half a step. Below 0.01 the steps of 0.01 are used.
TEST_P(Kernels, gelu_and_its_derivative_of_every_number_of_16_bits_are_right_but_for_rounding) {
  for (const auto& [dtype, form] :
       {std::pair(bf16, 0U), {f16, 0U}, {bf16, FVLM_QUICK_GELU}, {f16, FVLM_QUICK_GELU}, {bf16, FVLM_GELU_TANH}}) {
    SCOPED_TRACE(form);
    const Shape s{"", 256, 256, dtype};
    Bench bench(s, FVLM_OP_BIAS_GELU);
    bench.query.options |= form;
    if (dtype.code == FVLM_FLOAT && support_of(bench.plugin, bench.query).score == 0) continue;
    bench.ask();
    const int mantissa = dtype.code == FVLM_FLOAT ? 10 : 7;
    GuardedTensor x = rows_like(s, 1), y = rows_like(s, 2), d = rows_like(s, 3);
    for (int64_t i = 0; i < x.count(); ++i) x.set(i, number_of(i, mantissa));
    d.fill(1);
    fvlm_bias_gelu_forward f{};
    f.x = x.get(), f.y = y.get();
    bench.run(bench.plugin->bias_gelu_forward, f, bench.needs.forward_workspace);
    fvlm_bias_gelu_backward b{};
    b.x = x.get(), b.d_y = d.get(), b.d_x = d.get();
    bench.run(bench.plugin->bias_gelu_backward, b, bench.needs.backward_workspace);
    const auto steps_off = [&](double got, double exact) {
      return std::fabs(got - exact) / std::ldexp(1.0, std::ilogb(std::max(std::fabs(exact), 0.01)) - mantissa);
    };
    for (int64_t i = 0; i < x.count(); ++i) {
      const double v = x.value(i);
      const auto [value, slope] = gelu_at(v, form);
      ASSERT_LE(steps_off(y.value(i), value), 0.54) << "gelu of " << v << " is " << y.value(i);
      ASSERT_LE(steps_off(d.value(i), slope), 0.54) << "its derivative at " << v << " is " << d.value(i);
    }
  }
}

TEST_P(Kernels, layerscale_agrees_with_float64_loops) {
  for (const Shape& s : shapes())
    for (const bool accumulate : {false, true}) {
      SCOPED_TRACE(s.name);
      Bench bench(s, FVLM_OP_LAYERSCALE_RESIDUAL);
      bench.ask();
      GuardedTensor x = rows_like(s, 1), scale = parameter_like(s, 2), residual = rows_like(s, 3),
                    d_y = rows_like(s, 4);
      Numbers e_y = doubles(residual), e_d = doubles(d_y),
              e_scale(static_cast<size_t>(s.width), accumulate ? 0.5 : 0.0);
      for (size_t i = 0; i < e_y.size(); ++i) {
        const size_t c = i % static_cast<size_t>(s.width);
        e_y[i] += static_cast<double>(x.value(static_cast<int64_t>(i))) * scale.value(static_cast<int64_t>(c));
        e_scale[c] += e_d[i] * x.value(static_cast<int64_t>(i));
        e_d[i] *= scale.value(static_cast<int64_t>(c));
      }
      fvlm_layerscale_forward f{};
      f.x = x.get(), f.scale = scale.get(), f.residual = residual.get(), f.y = residual.get(); // in place
      bench.run(bench.plugin->layerscale_forward, f, bench.needs.forward_workspace);
      expect_close(residual, e_y, tolerance(s), "y");
      GuardedTensor d_x = rows_like(s, 5), d_scale(f32, {s.width});
      d_scale.fill(accumulate ? 0.5 : 99);
      fvlm_layerscale_backward b{};
      b.accumulate = accumulate;
      b.x = x.get(), b.scale = scale.get(), b.d_y = d_y.get(), b.d_x = d_x.get(), b.d_scale = d_scale.get();
      bench.run(bench.plugin->layerscale_backward, b, bench.needs.backward_workspace);
      expect_close(d_x, e_d, tolerance(s), "d_x");
      expect_close(d_scale, e_scale, 2e-5, "d_scale");
      for (const GuardedTensor* t : {&residual, &d_x, &d_scale}) t->expect_intact("an output");
    }
}

TEST_P(Kernels, rope_agrees_with_float64_loops_and_undoes_itself) {
  struct Heads {
    int64_t rows;
    int32_t heads, head_dim, rotary_dim;
    fvlm_dtype dtype = f32;
    int64_t gap = 0;
    bool has_frequencies = false;
  };
  for (const Heads& h : std::vector<Heads>{{40, 12, 64, 64},
                                           {5, 3, 16, 16},
                                           {7, 2, 80, 20},
                                           {3, 1, 2, 2},
                                           {4, 2, 300, 290},
                                           {0, 2, 16, 16},
                                           {9, 2, 6, 0},
                                           {20, 3, 24, 22, f32, 8},
                                           {20, 3, 64, 32, bf16, 8},
                                           {40, 12, 64, 64, f32, 0, true},
                                           {20, 3, 24, 22, bf16, 8, true}}) {
    SCOPED_TRACE("head_dim " + std::to_string(h.head_dim) + ", rotary_dim " + std::to_string(h.rotary_dim));
    Bench bench({"", h.rows, h.heads * h.head_dim, h.dtype}, FVLM_OP_ROPE);
    bench.query.heads = h.heads, bench.query.head_dim = h.head_dim, bench.query.rotary_dim = h.rotary_dim;
    bench.query.rope_theta = 1e5f;
    if (h.has_frequencies) bench.query.options |= FVLM_WITH_FREQUENCIES;
    bench.ask();
    GuardedTensor frequencies(f64, {h.rotary_dim / 2});
    const auto frequency_of = [&](int64_t i) { // scaled in some dimensions
      return std::pow(1e5, -2.0 * static_cast<double>(i) / h.rotary_dim) / (h.has_frequencies && i % 3 == 1 ? 7 : 1);
    };
    for (int64_t i = 0; i < h.rotary_dim / 2; ++i) frequencies.set(i, frequency_of(i));
    GuardedTensor x(h.dtype, {h.rows, h.heads, h.head_dim}, h.gap), out(h.dtype, x.shape(), h.gap);
    GuardedTensor positions(i32, {h.rows});
    x.random(1), out.fill(99);
    Numbers expected = doubles(x);
    const Numbers before = expected;
    for (int64_t r = 0; r < h.rows; ++r) {
      const int64_t position = r == 0 ? 0 : 8191 - 37 * r;
      positions.set(r, static_cast<double>(position));
      for (int64_t head = 0; head < h.heads; ++head)
        for (int64_t i = 0; i < h.rotary_dim / 2; ++i) {
          const double angle = static_cast<double>(position) * frequency_of(i);
          const auto low = static_cast<size_t>((r * h.heads + head) * h.head_dim + i);
          const auto high = low + static_cast<size_t>(h.rotary_dim / 2);
          expected[low] = before[low] * std::cos(angle) - before[high] * std::sin(angle);
          expected[high] = before[high] * std::cos(angle) + before[low] * std::sin(angle);
        }
    }
    fvlm_rope_apply a{};
    a.x = x.get(), a.positions = positions.get(), a.out = out.get();
    if (h.has_frequencies) a.frequencies = frequencies.get();
    bench.run(bench.plugin->rope, a, bench.needs.forward_workspace);
    expect_close(out, expected, h.dtype.bits == 16 ? 6e-3 : 1e-6, "out");
    a.x = out.get(), a.inverse = 1; // in place
    bench.run(bench.plugin->rope, a, bench.needs.forward_workspace);
    expect_close(out, before, h.dtype.bits == 16 ? 1e-2 : 2e-6, "undone");
    out.expect_intact("out");
  }
}

TEST_P(Kernels, parameter_gradients_have_the_same_bits_with_any_number_of_threads) {
  std::vector<std::vector<unsigned char>> seen;
  for (const int threads : {1, 2, 3}) {
    const Shape s{"", 1000, 70, f32, 0, threads};
    Bench bench(s, FVLM_OP_RMSNORM);
    bench.ask();
    GuardedTensor x = rows_like(s, 1), weight = parameter_like(s, 2), d_y = rows_like(s, 3), d_x = rows_like(s, 4);
    GuardedTensor inverse(f32, {s.rows}), d_weight(f32, {s.width});
    inverse.fill(0.7);
    fvlm_norm_backward b{};
    b.d_y = d_y.get(), b.s = x.get(), b.weight = weight.get(), b.d_x = d_x.get(), b.d_weight = d_weight.get();
    b.saved[0] = inverse.get();
    bench.run(bench.plugin->rmsnorm_backward, b, bench.needs.backward_workspace);
    seen.push_back(d_weight.bytes());
  }
  EXPECT_EQ(seen[0], seen[1]);
  EXPECT_EQ(seen[0], seen[2]);
}

TEST_P(Kernels, a_nan_stays_a_nan) {
  const Shape s{"", 2, 40};
  const double nan = std::numeric_limits<double>::quiet_NaN();
  GuardedTensor x = rows_like(s, 1), up = rows_like(s, 2), y = rows_like(s, 3);
  x.set(5, nan);
  Bench swiglu(s, FVLM_OP_SWIGLU), gelu(s, FVLM_OP_BIAS_GELU);
  swiglu.ask(), gelu.ask();
  fvlm_swiglu_forward f{};
  f.gate = x.get(), f.up = up.get(), f.y = y.get();
  swiglu.run(swiglu.plugin->swiglu_forward, f, swiglu.needs.forward_workspace);
  for (int64_t i = 0; i < y.count(); ++i) EXPECT_EQ(std::isnan(y.value(i)), i == 5) << "swiglu, element " << i;
  fvlm_bias_gelu_forward g{};
  g.x = x.get(), g.y = y.get();
  gelu.run(gelu.plugin->bias_gelu_forward, g, gelu.needs.forward_workspace);
  for (int64_t i = 0; i < y.count(); ++i) EXPECT_EQ(std::isnan(y.value(i)), i == 5) << "gelu, element " << i;
}

TEST_P(Kernels, refuses_what_it_cannot_do_with_a_reason) {
  const Host host(1);
  const KernelsTable plugin(FVLM_TEST_LIBRARY, FVLM_KERNELS_KIND, host);
  const auto reason = [&](int32_t op, const std::function<void(fvlm_kernels_query&)>& change) {
    fvlm_kernels_query query = query_of({"", 4, 16}, op);
    change(query);
    const fvlm_support support = support_of(plugin, query);
    EXPECT_EQ(support.score, 0);
    return std::string(support.reason);
  };
  EXPECT_NE(reason(FVLM_OP_RMSNORM, [](auto& q) { q.dtype = {FVLM_FLOAT, 64, 1}; }).find("float64"), std::string::npos);
  EXPECT_NE(reason(FVLM_OP_RMSNORM, [](auto& q) { q.gradient_dtype = f16; }).find("float16"), std::string::npos);
  const bool on_cpu = test_device().device.type == FVLM_CPU;
  EXPECT_NE(reason(FVLM_OP_SWIGLU, [&](auto& q) { q.device.type = on_cpu ? FVLM_CUDA : FVLM_CPU; })
                .find(on_cpu ? "CPU" : "CUDA"),
            std::string::npos);
  EXPECT_NE(reason(FVLM_OP_ROPE, [](auto& q) { q.head_dim = 16, q.rotary_dim = 17; }).find("rotary_dim 17"),
            std::string::npos);
  EXPECT_FALSE(reason(FVLM_OP_LINEAR, [](auto& q) { q.options |= FVLM_WITH_GELU; }).empty());
}

INSTANTIATE_TEST_SUITE_P(variants, Kernels,
                         ::testing::ValuesIn(test_device().variants ? test_device().variants() : cpu_levels()),
                         [](const auto& variant) { return variant.param; });

} // namespace
} // namespace fvlm::testing
