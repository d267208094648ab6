// int4_test.cpp: the scheme int4 of the built quantizer-cpu library: layout, scales, and products against double.
#include "common/testing/guarded.h"
#include "common/testing/harness.h"

#include <cmath>

namespace fvlm::testing {
namespace {

using Floats = std::vector<float>;
const fvlm_dtype u8{FVLM_UINT, 8, 1};

Floats random_floats(std::int64_t count, std::uint64_t seed) {
  Random random(seed);
  Floats values(static_cast<std::size_t>(count));
  for (float& value : values) value = random();
  return values;
}

class Int4Test : public ::testing::TestWithParam<std::string> {
 protected:
  Int4Test() { setenv("FVLM_CPU_LEVEL", GetParam().c_str(), 1); }

  struct Packed {
    std::int64_t rows, cols, group, stride, groups;
    std::vector<std::uint8_t> codes;
    Floats scales;

    // As compressed-tensors unpacks: the lowest four bits of a 32-bit word come first.
    int code(std::int64_t row, std::int64_t col) const {
      const std::uint8_t* word = codes.data() + row * stride + col / 8 * 4;
      const std::uint32_t bits = static_cast<std::uint32_t>(word[0]) | static_cast<std::uint32_t>(word[1]) << 8 |
                                 static_cast<std::uint32_t>(word[2]) << 16 | static_cast<std::uint32_t>(word[3]) << 24;
      return static_cast<int>(bits >> (col % 8 * 4) & 15) - 8;
    }
    double scale(std::int64_t row, std::int64_t col) const {
      return static_cast<double>(scales[static_cast<std::size_t>(row * groups + col / group)]);
    }
    double weight(std::int64_t row, std::int64_t col) const { return code(row, col) * scale(row, col); }
  };

  Packed pack(Floats weight, std::int64_t rows, std::int64_t cols, std::int64_t group, Floats importance = {}) {
    const std::int64_t groups = cols / group, stride = (cols + 7) / 8 * 4;
    Packed packed{rows,
                  cols,
                  group,
                  stride,
                  groups,
                  std::vector<std::uint8_t>(static_cast<std::size_t>(rows * stride)),
                  Floats(static_cast<std::size_t>(rows * groups))};
    const fvlm_quantizer_query q{sizeof q, {FVLM_CPU, 0}, f32, rows, cols, 0};
    Call call(host);
    Tensor values(weight.data(), f32, {rows, cols}), codes(packed.codes.data(), u8, {rows, stride}),
        scales(packed.scales.data(), f32, {rows, groups}), weights(importance.data(), f32, {cols});
    const fvlm_quantizer_pack arguments{
        sizeof arguments, values.get(), {codes.get(), scales.get()}, importance.empty() ? nullptr : weights.get()};
    EXPECT_EQ(plugin->pack(plugin.instance(), call.get(), &q, &arguments), FVLM_OK) << call.error();
    return packed;
  }

  template <class Arguments, class Function>
  Floats product(Packed& packed, Function function, Floats x, Floats bias, std::int64_t tokens, std::int64_t inputs,
                 std::int64_t outputs) {
    const fvlm_quantizer_query q{sizeof q, {FVLM_CPU, 0}, f32, packed.rows, packed.cols, tokens};
    fvlm_requirements requirements{};
    requirements.struct_size = sizeof requirements;
    EXPECT_EQ(plugin->requirements(plugin.instance(), &q, &requirements, nullptr), FVLM_OK);
    Call call(host, requirements.forward_workspace);
    Floats y(static_cast<std::size_t>(tokens * outputs));
    Tensor codes(packed.codes.data(), u8, {packed.rows, packed.stride}),
        scales(packed.scales.data(), f32, {packed.rows, packed.groups}), input(x.data(), f32, {tokens, inputs}),
        output(y.data(), f32, {tokens, outputs}), added(bias.data(), f32, {outputs});
    Arguments arguments{};
    arguments.struct_size = sizeof arguments;
    arguments.packed[0] = codes.get(), arguments.packed[1] = scales.get();
    if constexpr (std::is_same_v<Arguments, fvlm_quantizer_linear>) {
      arguments.x = input.get(), arguments.y = output.get(), arguments.bias = bias.empty() ? nullptr : added.get();
    } else {
      arguments.d_y = input.get(), arguments.d_x = output.get();
    }
    EXPECT_EQ(function(plugin.instance(), call.get(), &q, &arguments), FVLM_OK) << call.error();
    return y;
  }

  Host host{3};
  Plugin<fvlm_quantizer_v1> plugin{FVLM_TEST_LIBRARY, "fvlm.quantizer/1:int4", host};
};
INSTANTIATE_TEST_SUITE_P(levels, Int4Test, ::testing::ValuesIn(cpu_levels()),
                         [](const auto& info) { return info.param; });

TEST_P(Int4Test, a_group_is_128_64_or_32_columns_or_the_row) {
  for (const auto& [cols, group] : std::vector<std::pair<std::int64_t, std::int64_t>>{
           {512, 128}, {256, 64}, {576, 64}, {192, 32}, {128, 32}, {64, 32}, {48, 48}, {7, 7}, {1, 1}}) {
    const Floats weight = random_floats(3 * cols, 5);
    const Packed packed = pack(weight, 3, cols, group);
    for (std::int64_t r = 0; r < 3; ++r) {
      for (std::int64_t begin = 0; begin < cols; begin += group) {
        double largest = 0;
        for (std::int64_t c = begin; c < begin + group; ++c)
          largest = std::max(largest, std::fabs(static_cast<double>(weight[static_cast<std::size_t>(r * cols + c)])));
        const double divisor = largest / packed.scale(r, begin);
        EXPECT_NEAR(divisor * 4, std::round(divisor * 4), 1e-4) << cols << " columns, group at " << begin;
        EXPECT_GE(divisor, 7 - 1e-4);
        EXPECT_LE(divisor, 10 + 1e-4);
        for (std::int64_t c = begin; c < begin + group; ++c) {
          const double exact = weight[static_cast<std::size_t>(r * cols + c)] / packed.scale(r, c);
          EXPECT_LE(std::fabs(std::clamp(exact, -8.0, 7.0) - packed.code(r, c)), 0.5 + 1e-4) << r << ", " << c;
        }
      }
      for (std::int64_t byte = (cols + 1) / 2; byte < packed.stride; ++byte)
        EXPECT_EQ(packed.codes[static_cast<std::size_t>(r * packed.stride + byte)], 0) << "no column's bits";
    }
  }
}

// What clipping costs the largest weight, it gains for the others; how much, depends on whose errors matter.
TEST_P(Int4Test, scales_lessen_the_weighted_error) {
  const std::int64_t rows = 16, cols = 512;
  const Floats weight = random_floats(rows * cols, 9);
  Floats importance(static_cast<std::size_t>(cols), 1);
  for (std::size_t c = 0; c < importance.size(); c += 16) importance[c] = 1000;
  const auto error = [&](const Packed& packed, const Floats& matters) {
    double sum = 0;
    for (std::int64_t r = 0; r < rows; ++r)
      for (std::int64_t c = 0; c < cols; ++c) {
        const double off = weight[static_cast<std::size_t>(r * cols + c)] - packed.weight(r, c);
        sum += off * off * static_cast<double>(matters[static_cast<std::size_t>(c)]);
      }
    return sum;
  };
  double of_largest = 0; // with the largest weight of a group at code 7
  for (std::int64_t r = 0; r < rows; ++r)
    for (std::int64_t begin = 0; begin < cols; begin += 128) {
      const float* group = weight.data() + r * cols + begin;
      double largest = 0;
      for (int i = 0; i < 128; ++i) largest = std::max(largest, std::fabs(static_cast<double>(group[i])));
      for (int i = 0; i < 128; ++i) {
        const double off = group[i] - std::nearbyint(group[i] / (largest / 7)) * largest / 7;
        of_largest += off * off;
      }
    }
  const Packed alike = pack(weight, rows, cols, 128), weighted = pack(weight, rows, cols, 128, importance);
  const Floats ones(static_cast<std::size_t>(cols), 1);
  EXPECT_LT(error(alike, ones), of_largest);
  EXPECT_LT(error(alike, ones), error(weighted, ones));
  EXPECT_LT(error(weighted, importance), error(alike, importance));
}

TEST_P(Int4Test, products_match_double) {
  struct Shape {
    std::int64_t tokens, rows, cols, group;
  };
  for (const auto& [tokens, rows, cols, group] : {Shape{1, 1, 1, 1},
                                                  {1, 130, 256, 64},
                                                  {3, 5, 7, 7},
                                                  {7, 65, 192, 32},
                                                  {8, 64, 96, 32},
                                                  {13, 3, 33, 33},
                                                  {2, 9, 512, 128},
                                                  {50, 130, 576, 64},
                                                  {481, 65, 70, 70}}) {
    Packed packed = pack(random_floats(rows * cols, 1), rows, cols, group);
    const Floats x = random_floats(tokens * cols, 2), d_y = random_floats(tokens * rows, 3),
                 bias = random_floats(rows, 4);
    const Floats y = product<fvlm_quantizer_linear>(packed, plugin->linear, x, bias, tokens, cols, rows),
                 d_x = product<fvlm_quantizer_linear_gradient>(packed, plugin->linear_gradient, d_y, {}, tokens, rows,
                                                               cols);
    for (std::int64_t t = 0; t < tokens; ++t) {
      for (std::int64_t r = 0; r < rows; ++r) {
        double sum = bias[static_cast<std::size_t>(r)];
        for (std::int64_t c = 0; c < cols; ++c) sum += x[static_cast<std::size_t>(t * cols + c)] * packed.weight(r, c);
        ASSERT_NEAR(y[static_cast<std::size_t>(t * rows + r)], sum, 1e-6 * std::fabs(sum) + 3e-5)
            << tokens << " x " << rows << " x " << cols;
      }
      for (std::int64_t c = 0; c < cols; ++c) {
        double sum = 0;
        for (std::int64_t r = 0; r < rows; ++r)
          sum += d_y[static_cast<std::size_t>(t * rows + r)] * packed.weight(r, c);
        ASSERT_NEAR(d_x[static_cast<std::size_t>(t * cols + c)], sum, 1e-6 * std::fabs(sum) + 3e-5)
            << tokens << " x " << rows << " x " << cols;
      }
    }
  }
}

} // namespace
} // namespace fvlm::testing
