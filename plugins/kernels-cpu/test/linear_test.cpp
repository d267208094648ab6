// linear_test.cpp: linears against float64 loops: every number of few rows, many rows, sizes that are no multiple of a
// vector, a tile or a block, both types, and as many threads as make a difference.
#include "common/testing/gelu.h"
#include "common/testing/guarded.h"

#include <algorithm>
#include <cstdlib>
#include <functional>

namespace fvlm::testing {
namespace {

using KernelsTable = Plugin<fvlm_kernels_v1>;
using Numbers = std::vector<double>;

struct Problem {
  int64_t rows, width, inner;
  fvlm_dtype dtype = f32;
  bool bias = true, residual = true;
  int64_t row_gap = 0;
  uint32_t gelu = 0; // options
  bool bfloat16_weight = false;
};

fvlm_kernels_query query_of(const Problem& p, bool backward) {
  fvlm_kernels_query query{};
  query.struct_size = sizeof query;
  query.op = FVLM_OP_LINEAR;
  query.device = test_device().device;
  query.dtype = p.dtype;
  query.gradient_dtype = f32;
  if (p.bias) query.options |= FVLM_WITH_BIAS;
  if (p.residual) query.options |= FVLM_WITH_RESIDUAL;
  if (backward) query.options |= FVLM_WITH_BACKWARD;
  if (p.bfloat16_weight) query.options |= FVLM_BFLOAT16_WEIGHT;
  query.options |= p.gelu;
  query.rows = p.rows;
  query.width = p.width;
  query.inner = p.inner;
  return query;
}

GuardedTensor random(const Problem& p, int64_t rows, int64_t columns, unsigned seed, int64_t gap = 0) {
  GuardedTensor tensor(p.dtype, {rows, columns}, gap);
  tensor.random(seed);
  return tensor;
}

// sum over k of a(row, k) b(column, k)
Numbers product(int64_t rows, int64_t columns, int64_t depth, const std::function<double(int64_t, int64_t)>& a,
                const std::function<double(int64_t, int64_t)>& b) {
  Numbers all;
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t c = 0; c < columns; ++c) {
      double sum = 0;
      for (int64_t k = 0; k < depth; ++k) sum += a(r, k) * b(c, k);
      all.push_back(sum);
    }
  return all;
}

class Linear : public ::testing::TestWithParam<std::string> {
 protected:
  void SetUp() override { setenv("FVLM_CPU_LEVEL", GetParam().c_str(), 1); }
  void TearDown() override { unsetenv("FVLM_CPU_LEVEL"); }
};

// Whether the plugin takes a linear without gradients on this machine. Few rows it always takes, and many rows with
// weights of bfloat16 wherever there are vectors of eight.
bool supported(const Problem& p) {
  const Host host(1);
  const KernelsTable plugin(FVLM_TEST_LIBRARY, FVLM_KERNELS_KIND, host);
  const bool is_supported = support_of(plugin, query_of(p, false)).score > 0;
  const bool has_vectors = std::getenv("FVLM_CPU_LEVEL") != std::string("baseline");
  EXPECT_TRUE(is_supported || p.rows > (p.dtype.bits == 16 ? 24 : 32)) << p.rows << " rows";
  EXPECT_TRUE(is_supported || (p.dtype.bits == 32 && !p.bfloat16_weight) || !has_vectors) << p.rows << " rows";
  return is_supported;
}

struct Bench {
  Bench(const Problem& p, bool backward, int threads)
      : host(threads), plugin(FVLM_TEST_LIBRARY, FVLM_KERNELS_KIND, host), query(query_of(p, backward)) {
    needs.struct_size = sizeof needs;
    EXPECT_GT(support_of(plugin, query).score, 0) << support_of(plugin, query).reason;
    EXPECT_EQ(plugin->requirements(plugin.instance(), &query, &needs, nullptr), FVLM_OK);
  }
  template <class Arguments>
  void run(fvlm_status (*function)(fvlm_instance*, const fvlm_call*, const fvlm_kernels_query*, const Arguments*),
           Arguments arguments, uint64_t workspace) {
    arguments.struct_size = sizeof arguments;
    Call call(host, workspace);
    EXPECT_EQ(function(plugin.instance(), call.get(), &query, &arguments), FVLM_OK) << call.error();
    EXPECT_TRUE(call.intact());
  }
  Host host;
  KernelsTable plugin;
  fvlm_kernels_query query;
  fvlm_requirements needs{};
};

// With the same numbers in either type.
GuardedTensor weight_of(const Problem& p) {
  GuardedTensor in_bfloat16(bf16, {p.width, p.inner});
  in_bfloat16.random(2);
  if (p.bfloat16_weight || p.dtype.bits == 16) return in_bfloat16;
  GuardedTensor weight(f32, {p.width, p.inner});
  for (int64_t i = 0; i < weight.count(); ++i) weight.set(i, in_bfloat16.value(i));
  return weight;
}

std::vector<unsigned char> check_forward(const Problem& p, int threads) {
  SCOPED_TRACE(::testing::Message() << p.rows << " rows, " << p.inner << " to " << p.width << ", " << p.dtype.bits
                                    << " bits, " << threads << " threads");
  Bench bench(p, false, threads);
  GuardedTensor x = random(p, p.rows, p.inner, 1, p.row_gap), weight = weight_of(p),
                residual = random(p, p.rows, p.width, 3, p.row_gap), y = random(p, p.rows, p.width, 4, p.row_gap),
                bias(p.dtype, {p.width});
  bias.random(5);
  fvlm_linear_forward f{};
  f.x = x.get(), f.weight = weight.get(), f.y = y.get();
  if (p.bias) f.bias = bias.get();
  if (p.residual) f.residual = residual.get();
  bench.run(bench.plugin->linear_forward, f, bench.needs.forward_workspace);
  Numbers expected = product(
      p.rows, p.width, p.inner, [&](int64_t r, int64_t k) { return x.value(r * p.inner + k); },
      [&](int64_t c, int64_t k) { return weight.value(c * p.inner + k); });
  for (int64_t i = 0; i < y.count(); ++i)
    expected[static_cast<size_t>(i)] += (p.bias ? bias.value(i % p.width) : 0) + (p.residual ? residual.value(i) : 0);
  if (p.gelu)
    for (double& value : expected) value = gelu_at(value, p.gelu & ~FVLM_WITH_GELU).first;
  const double rounding_of_sums = 2e-5 * std::max(1.0, static_cast<double>(p.inner) / 256);
  expect_close(y, expected, p.dtype.bits == 16 ? 4e-3 : rounding_of_sums, "y");
  y.expect_intact("y");
  return y.bytes();
}

TEST_P(Linear, EveryNumberOfRowsAndAnySizes) {
  for (const fvlm_dtype dtype : {f32, bf16})
    for (int64_t rows = 0; rows <= 32; ++rows)
      for (const auto& [width, inner] :
           std::vector<std::pair<int64_t, int64_t>>{{1, 1}, {5, 16}, {13, 37}, {34, 128}}) {
        const Problem p{rows, width, inner, dtype, rows % 2 == 0, rows % 3 == 0, rows % 4 == 1 ? 7 : 0};
        if (supported(p)) check_forward(p, 1);
      }
}

// More rows than are packed at a time, more columns than a block has, and features of several groups.
TEST_P(Linear, ManyRows) {
  for (const fvlm_dtype dtype : {f32, bf16}) {
    if (!supported({100, 8, 8, dtype})) continue;
    for (const int64_t rows : {33, 48, 63, 64, 65, 127, 200})
      for (const auto& [width, inner] : std::vector<std::pair<int64_t, int64_t>>{{1, 1}, {47, 30}, {50, 31}, {96, 48}})
        check_forward({rows, width, inner, dtype, rows % 2 == 0, rows % 3 == 0, rows % 4 == 1 ? 7 : 0}, 2);
    check_forward({65, 50, 1290, dtype}, 2);
    check_forward({1100, 13, 34, dtype, true, true, 5}, 2);
  }
}

TEST_P(Linear, GeluOfManyRows) {
  for (const uint32_t form : {0U, uint32_t{FVLM_QUICK_GELU}, uint32_t{FVLM_GELU_TANH}})
    for (const Problem& p : std::vector<Problem>{{70, 50, 31, f32, true, false, 0, FVLM_WITH_GELU | form},
                                                 {33, 20, 64, bf16, false, false, 3, FVLM_WITH_GELU | form}})
      if (supported(p)) check_forward(p, 2);
}

// Beside the float64 loops alone where float32 has no kernel of many rows here.
TEST_P(Linear, WeightsOfBfloat16GiveTheBitsOfTheSameNumbersInFloat32) {
  std::vector<Problem> all{{1100, 13, 34, f32, true, false, 5}, {70, 50, 31, f32, true, false, 0, FVLM_WITH_GELU}};
  for (const int64_t rows : {0, 1, 2, 3, 4, 5, 7, 8, 16, 31, 32, 33, 64, 70})
    for (const auto& [width, inner] : std::vector<std::pair<int64_t, int64_t>>{{1, 1}, {13, 37}, {34, 128}, {50, 290}})
      all.push_back({rows, width, inner, f32, rows % 2 == 0, rows % 3 == 0, rows % 4 == 1 ? 7 : 0});
  for (Problem& p : all) {
    const bool has_float32 = supported(p);
    p.bfloat16_weight = true;
    if (!supported(p)) continue;
    const auto found = check_forward(p, 2);
    p.bfloat16_weight = false;
    if (has_float32) {
      EXPECT_EQ(found, check_forward(p, 1)) << p.rows << " rows, " << p.inner << " to " << p.width;
    }
  }
}

TEST_P(Linear, TheSameBitsWithAnyNumberOfThreads) {
  for (const fvlm_dtype dtype : {f32, bf16}) {
    for (const Problem& p : std::vector<Problem>{{3, 1001, 300, dtype}, {70, 200, 66, dtype}}) {
      if (!supported(p)) continue;
      const auto one = check_forward(p, 1);
      EXPECT_EQ(check_forward(p, 2), one);
      EXPECT_EQ(check_forward(p, 3), one);
    }
  }
}

TEST_P(Linear, GradientsAreAddedToWhereTheCallSaysSo) {
  for (const bool accumulate : {false, true})
    for (const Problem& p : std::vector<Problem>{{1, 5, 3}, {7, 18, 37}, {32, 65, 100}}) {
      Bench bench(p, true, 2);
      GuardedTensor x = random(p, p.rows, p.inner, 1), weight = random(p, p.width, p.inner, 2),
                    d_y = random(p, p.rows, p.width, 3), d_x = random(p, p.rows, p.inner, 4, 3),
                    d_weight = random(p, p.width, p.inner, 5), d_bias(f32, {p.width});
      d_weight.fill(0.5), d_bias.fill(0.25);
      fvlm_linear_input_gradient g{};
      g.d_y = d_y.get(), g.weight = weight.get(), g.d_x = d_x.get();
      bench.run(bench.plugin->linear_input_gradient, g, bench.needs.backward_workspace);
      const auto of_d_y = [&](int64_t r, int64_t c) { return d_y.value(r * p.width + c); };
      expect_close(d_x,
                   product(p.rows, p.inner, p.width, of_d_y,
                           [&](int64_t i, int64_t k) { return weight.value(k * p.inner + i); }),
                   2e-5, "d_x");
      d_x.expect_intact("d_x");
      fvlm_linear_weight_gradient w{};
      w.accumulate = accumulate;
      w.d_y = d_y.get(), w.x = x.get(), w.d_weight = d_weight.get(), w.d_bias = d_bias.get();
      bench.run(bench.plugin->linear_weight_gradient, w, bench.needs.backward_workspace);
      Numbers expected = product(
          p.width, p.inner, p.rows, [&](int64_t c, int64_t r) { return of_d_y(r, c); },
          [&](int64_t i, int64_t r) { return x.value(r * p.inner + i); });
      Numbers sums = product(
          p.width, 1, p.rows, [&](int64_t c, int64_t r) { return of_d_y(r, c); }, [](int64_t, int64_t) { return 1.0; });
      for (double& one : expected) one += accumulate ? 0.5 : 0;
      for (double& one : sums) one += accumulate ? 0.25 : 0;
      expect_close(d_weight, expected, 2e-5, "d_weight");
      expect_close(d_bias, sums, 2e-5, "d_bias");
    }
}

TEST_P(Linear, RefusesWhatItHasNoKernelFor) {
  const Host host(1);
  const KernelsTable plugin(FVLM_TEST_LIBRARY, FVLM_KERNELS_KIND, host);
  const auto reason = [&](const Problem& p, bool backward, uint32_t options) {
    fvlm_kernels_query query = query_of(p, backward);
    query.options |= options;
    const fvlm_support support = support_of(plugin, query);
    EXPECT_EQ(support.score, 0);
    return std::string(support.reason);
  };
  EXPECT_NE(reason({33, 8, 8}, true, 0).find("33 rows"), std::string::npos);
  EXPECT_NE(reason({4, 8, 8, bf16}, true, 0).find("gradients"), std::string::npos);
  EXPECT_NE(reason({4, 8, 8}, false, FVLM_WITH_GELU).find("options"), std::string::npos);
  EXPECT_NE(reason({4, 8, 8}, true, FVLM_BFLOAT16_WEIGHT).find("options"), std::string::npos);
  EXPECT_NE(reason({4, 8, 8, bf16}, false, FVLM_BFLOAT16_WEIGHT).find("options"), std::string::npos);
  if (GetParam() == "baseline") {
    EXPECT_NE(reason({33, 8, 8}, false, 0).find("33 rows"), std::string::npos);
    EXPECT_NE(reason({25, 8, 8, bf16}, false, 0).find("25 rows"), std::string::npos);
  }
}

std::vector<std::string> levels() {
  std::vector<std::string> found = cpu_levels();
  if (plugins::has_bfloat16_products(plugins::cpu_level())) found.push_back("avx512bf16");
  return found;
}

INSTANTIATE_TEST_SUITE_P(levels, Linear, ::testing::ValuesIn(levels()), [](const auto& level) { return level.param; });

} // namespace
} // namespace fvlm::testing
