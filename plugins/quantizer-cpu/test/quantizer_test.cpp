// quantizer_test.cpp: int8 of the built quantizer-cpu library: codes against their definition, products against double,
// and all of it against PyTorch.
#include "common/testing/guarded.h"
#include "common/testing/harness.h"
#include "common/testing/oracle.h"
#include "common/testing/values.h"

#include <map>

namespace fvlm::testing {
namespace {

using Floats = std::vector<float>;

Floats random_floats(std::int64_t count, std::uint64_t seed) {
  Random random(seed);
  Floats values(static_cast<std::size_t>(count));
  for (float& value : values) value = random();
  return values;
}

struct Packed {
  std::vector<std::int8_t> codes;
  Floats scales;
};

// A matrix whose row stride may be larger than its width.
class Rows {
 public:
  Rows(std::int64_t rows, std::int64_t cols, fvlm_dtype dtype, std::int64_t gap = 0)
      : rows_(rows), cols_(cols), stride_(cols + gap), values_(rows * stride_, dtype),
        tensor_(values_.tensor(rows, cols, stride_)) {
    for (std::int64_t i = 0; i < values_.size(); ++i) values_.set(i, -99);
  }
  Rows(const Floats& from, std::int64_t rows, std::int64_t cols, fvlm_dtype dtype, std::int64_t gap = 0)
      : Rows(rows, cols, dtype, gap) {
    for (std::int64_t i = 0; i < rows * cols; ++i)
      values_.set(i / cols * stride_ + i % cols, from[static_cast<std::size_t>(i)]);
  }
  float get(std::int64_t row, std::int64_t col) const { return values_.get(row * stride_ + col); }
  fvlm_tensor* tensor() { return tensor_.get(); }
  Floats floats() const {
    Floats all;
    for (std::int64_t i = 0; i < rows_ * cols_; ++i) all.push_back(get(i / cols_, i % cols_));
    return all;
  }
  bool gaps_intact() const {
    for (std::int64_t r = 0; r < rows_; ++r) {
      for (std::int64_t c = cols_; c < stride_; ++c) {
        if (values_.get(r * stride_ + c) != -99) return false;
      }
    }
    return true;
  }
  const TestVector<char>& bytes() const { return values_.bytes(); }

 private:
  std::int64_t rows_, cols_, stride_;
  Values values_;
  Tensor tensor_;
};

class QuantizerTest : public ::testing::Test {
 protected:
  QuantizerTest() = default;
  explicit QuantizerTest(const std::string& level) : level_{level} {}
  fvlm_quantizer_query query(std::int64_t rows, std::int64_t cols, std::int64_t tokens = 0,
                             fvlm_dtype dtype = f32) const {
    return {sizeof(fvlm_quantizer_query), {FVLM_CPU, 0}, dtype, rows, cols, tokens};
  }
  Call call_for(const fvlm_quantizer_query& q) { return call_for(q, host); }
  Call call_for(const fvlm_quantizer_query& q, const Host& threads) {
    fvlm_requirements requirements{};
    requirements.struct_size = sizeof requirements;
    EXPECT_EQ(plugin->requirements(plugin.instance(), &q, &requirements, nullptr), FVLM_OK);
    EXPECT_EQ(requirements.saved_count, 2u);
    return Call(threads, requirements.forward_workspace);
  }

  Packed pack(Rows& weight, std::int64_t rows, std::int64_t cols, fvlm_dtype dtype = f32) {
    const auto q = query(rows, cols, 0, dtype);
    Call call = call_for(q);
    Packed packed{std::vector<std::int8_t>(static_cast<std::size_t>(rows * cols)),
                  Floats(static_cast<std::size_t>(rows))};
    Tensor codes(packed.codes.data(), i8, {rows, cols}), scales(packed.scales.data(), f32, {rows});
    const fvlm_quantizer_pack arguments{sizeof arguments, weight.tensor(), {codes.get(), scales.get()}};
    EXPECT_EQ(plugin->pack(plugin.instance(), call.get(), &q, &arguments), FVLM_OK) << call.error();
    return packed;
  }

  Floats unpack(Packed& packed, std::int64_t rows, std::int64_t cols, fvlm_dtype dtype = f32) {
    const auto q = query(rows, cols, 0, dtype);
    Call call = call_for(q);
    Rows weight(rows, cols, dtype, 2);
    Tensor codes(packed.codes.data(), i8, {rows, cols}), scales(packed.scales.data(), f32, {rows});
    const fvlm_quantizer_unpack arguments{sizeof arguments, {codes.get(), scales.get()}, weight.tensor()};
    EXPECT_EQ(plugin->unpack(plugin.instance(), call.get(), &q, &arguments), FVLM_OK) << call.error();
    EXPECT_TRUE(weight.gaps_intact());
    return weight.floats();
  }

  Floats fake(Rows& weight, std::int64_t rows, std::int64_t cols, fvlm_dtype dtype = f32) {
    const auto q = query(rows, cols, 0, dtype);
    Call call = call_for(q);
    Rows out(rows, cols, dtype, 1);
    const fvlm_fake_quantize_forward arguments{sizeof arguments, weight.tensor(), out.tensor()};
    EXPECT_EQ(plugin->fake_quantize_forward(plugin.instance(), call.get(), &q, &arguments), FVLM_OK) << call.error();
    return out.floats();
  }

  Floats fake_gradient(Rows& weight, Rows& d_out, std::int64_t rows, std::int64_t cols, fvlm_dtype dtype = f32) {
    const auto q = query(rows, cols, 0, dtype);
    Call call = call_for(q);
    Rows d_weight(rows, cols, dtype, 1);
    const fvlm_fake_quantize_backward arguments{sizeof arguments, weight.tensor(), d_out.tensor(), d_weight.tensor()};
    EXPECT_EQ(plugin->fake_quantize_backward(plugin.instance(), call.get(), &q, &arguments), FVLM_OK) << call.error();
    return d_weight.floats();
  }

  // y has a row stride that is 3 larger than its width.
  Rows linear(Packed& packed, Rows& x, fvlm_tensor* bias, std::int64_t tokens, std::int64_t rows, std::int64_t cols,
              fvlm_dtype dtype, const Host& threads) {
    const auto q = query(rows, cols, tokens, dtype);
    Call call = call_for(q, threads);
    Rows y(tokens, rows, dtype, 3);
    Tensor codes(packed.codes.data(), i8, {rows, cols}), scales(packed.scales.data(), f32, {rows});
    const fvlm_quantizer_linear arguments{sizeof arguments, {codes.get(), scales.get()}, x.tensor(), bias, y.tensor()};
    EXPECT_EQ(plugin->linear(plugin.instance(), call.get(), &q, &arguments), FVLM_OK) << call.error();
    EXPECT_TRUE(y.gaps_intact());
    return y;
  }

  Rows linear_gradient(Packed& packed, Rows& d_y, std::int64_t tokens, std::int64_t rows, std::int64_t cols,
                       fvlm_dtype dtype, const Host& threads) {
    const auto q = query(rows, cols, tokens, dtype);
    Call call = call_for(q, threads);
    Rows d_x(tokens, cols, dtype, 3);
    Tensor codes(packed.codes.data(), i8, {rows, cols}), scales(packed.scales.data(), f32, {rows});
    const fvlm_quantizer_linear_gradient arguments{
        sizeof arguments, {codes.get(), scales.get()}, d_y.tensor(), d_x.tensor()};
    EXPECT_EQ(plugin->linear_gradient(plugin.instance(), call.get(), &q, &arguments), FVLM_OK) << call.error();
    EXPECT_TRUE(d_x.gaps_intact());
    return d_x;
  }

  struct Level { // set while the instance is created
    explicit Level(const std::string& level = "") { setenv("FVLM_CPU_LEVEL", level.c_str(), 1); }
  } level_;
  Host host{3}; // of the instance: its workspace suffices for this many threads
  Plugin<fvlm_quantizer_v1> plugin{FVLM_TEST_LIBRARY, "fvlm.quantizer/1:int8", host};
};

TEST_F(QuantizerTest, codes_are_the_weight_over_its_rows_scale_rounded_half_to_even) {
  for (const fvlm_dtype dtype : {f32, bf16}) {
    for (const auto& [rows, cols] : std::map<int, int>{{1, 1}, {3, 17}, {65, 130}, {40, 1}}) {
      Rows weight(random_floats(rows * cols, 5), rows, cols, dtype, 1);
      Packed packed = pack(weight, rows, cols, dtype);
      const Floats back = unpack(packed, rows, cols, dtype), faked = fake(weight, rows, cols, dtype);
      for (int r = 0; r < rows; ++r) {
        float largest = 0;
        for (int c = 0; c < cols; ++c) largest = std::max(largest, std::fabs(weight.get(r, c)));
        const float scale = packed.scales[static_cast<std::size_t>(r)];
        ASSERT_EQ(scale, largest / 127) << "row " << r;
        for (int c = 0; c < cols; ++c) {
          const auto i = static_cast<std::size_t>(r) * static_cast<std::size_t>(cols) + static_cast<std::size_t>(c);
          ASSERT_EQ(packed.codes[i], static_cast<int>(std::nearbyint(weight.get(r, c) / scale))) << r << ", " << c;
          ASSERT_EQ(back[i], rounded(static_cast<float>(packed.codes[i]) * scale, dtype)) << r << ", " << c;
          ASSERT_EQ(faked[i], back[i]) << "fake quantisation is not unpack(pack(weight)) at " << r << ", " << c;
        }
      }
    }
  }
}

TEST_F(QuantizerTest, ties_go_to_even_codes) {
  Rows weight({127, 0.5f, 1.5f, 2.5f, -0.5f, -1.5f, -2.5f, 126.5f}, 1, 8, f32);
  EXPECT_EQ(pack(weight, 1, 8).codes, (std::vector<std::int8_t>{127, 0, 2, 2, 0, -2, -2, 126}));
}

TEST_F(QuantizerTest, rows_of_zeros_of_denormals_and_of_nan_have_codes_and_do_not_crash) {
  const float tiny = std::numeric_limits<float>::denorm_min();
  Rows weight({0, 0, 0, 0, 60 * tiny, -tiny, 190 * tiny, 100 * tiny, NAN, 1, INFINITY, -1}, 6, 2, f32);
  Packed packed = pack(weight, 6, 2);
  EXPECT_EQ(packed.scales[0], 0);
  EXPECT_EQ(packed.scales[2], 0) << "60 of the smallest numbers over 127 round to nothing";
  EXPECT_EQ(packed.scales[3], tiny);
  for (const std::size_t i : {0, 1, 4, 5}) EXPECT_EQ(packed.codes[i], 0) << i;
  EXPECT_EQ(packed.codes[6], 127) << "clipped";
  EXPECT_EQ(packed.codes[7], 100);
  const Floats back = unpack(packed, 6, 2);
  for (const std::size_t i : {0, 1, 4, 5}) EXPECT_EQ(back[i], 0) << i;
  EXPECT_TRUE(std::isnan(back[8]) && std::isnan(back[9])) << back[8] << " " << back[9];
  EXPECT_FALSE(std::isfinite(back[10])) << back[10];
  Rows d_out({1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12}, 6, 2, f32);
  const Floats d_weight = fake_gradient(weight, d_out, 6, 2);
  EXPECT_EQ(Floats(d_weight.begin(), d_weight.begin() + 8), (Floats{1, 2, 3, 4, 5, 6, 0, 8}));
}

TEST_F(QuantizerTest, the_straight_through_gradient_passes_whole) {
  for (const fvlm_dtype dtype : {f32, bf16}) {
    Rows weight(random_floats(33 * 70, 1), 33, 70, dtype), d_out(random_floats(33 * 70, 2), 33, 70, dtype, 4);
    EXPECT_EQ(fake_gradient(weight, d_out, 33, 70, dtype), d_out.floats());
  }
}

struct Shape {
  std::int64_t tokens, rows, cols;
};

class QuantizerLevelTest : public QuantizerTest, public ::testing::WithParamInterface<std::string> {
 protected:
  QuantizerLevelTest() : QuantizerTest(GetParam()) {}
};
INSTANTIATE_TEST_SUITE_P(levels, QuantizerLevelTest, ::testing::ValuesIn(cpu_levels()),
                         [](const auto& info) { return info.param; });

TEST_P(QuantizerLevelTest, products_match_double) {
  const Shape shapes[] = {{0, 5, 6},   {1, 1, 1},    {1, 130, 300}, {3, 5, 1},      {7, 65, 17},
                          {8, 64, 64}, {9, 63, 255}, {13, 1, 33},   {50, 130, 300}, {481, 65, 70}};
  for (const fvlm_dtype dtype : {f32, bf16}) {
    for (const auto& [tokens, rows, cols] : shapes) {
      Rows weight(random_floats(rows * cols, 1), rows, cols, dtype),
          x(random_floats(tokens * cols, 2), tokens, cols, dtype, 5),
          d_y(random_floats(tokens * rows, 3), tokens, rows, dtype, 5), bias(random_floats(rows, 4), 1, rows, dtype);
      Packed packed = pack(weight, rows, cols, dtype);
      Tensor bias_tensor(bias.tensor()->data, dtype, {rows});
      const Rows y = linear(packed, x, bias_tensor.get(), tokens, rows, cols, dtype, host),
                 bare = linear(packed, x, nullptr, tokens, rows, cols, dtype, host),
                 d_x = linear_gradient(packed, d_y, tokens, rows, cols, dtype, host);
      const auto w = [&, cols = cols](std::int64_t r, std::int64_t c) {
        const auto code = static_cast<double>(
            packed.codes[static_cast<std::size_t>(r) * static_cast<std::size_t>(cols) + static_cast<std::size_t>(c)]);
        return code * static_cast<double>(packed.scales[static_cast<std::size_t>(r)]);
      };
      const double unit = dtype.bits == 16 ? 1.0 / 256 : 1e-6;
      for (std::int64_t t = 0; t < tokens; ++t) {
        for (std::int64_t r = 0; r < rows; ++r) {
          double sum = 0;
          for (std::int64_t c = 0; c < cols; ++c) sum += x.get(t, c) * w(r, c);
          ASSERT_NEAR(bare.get(t, r), sum, unit * std::fabs(sum) + 2e-5) << tokens << " x " << rows << " x " << cols;
          sum += bias.get(0, r);
          ASSERT_NEAR(y.get(t, r), sum, unit * std::fabs(sum) + 2e-5) << tokens << " x " << rows << " x " << cols;
        }
        for (std::int64_t c = 0; c < cols; ++c) {
          double sum = 0;
          for (std::int64_t r = 0; r < rows; ++r) sum += d_y.get(t, r) * w(r, c);
          ASSERT_NEAR(d_x.get(t, c), sum, unit * std::fabs(sum) + 2e-5) << tokens << " x " << rows << " x " << cols;
        }
      }
    }
  }
}

TEST_F(QuantizerTest, sums_over_no_inputs_are_the_bias) {
  Packed packed{{}, {0, 0}};
  Rows x(3, 0, f32), bias({5, 6}, 1, 2, f32);
  Tensor bias_tensor(bias.tensor()->data, f32, {2});
  EXPECT_EQ(linear(packed, x, bias_tensor.get(), 3, 2, 0, f32, host).floats(), (Floats{5, 6, 5, 6, 5, 6}));
}

TEST_F(QuantizerTest, threads_and_repetition_do_not_change_a_bit) {
  const std::int64_t tokens = 500, rows = 200, cols = 300;
  Rows weight(random_floats(rows * cols, 1), rows, cols, bf16), x(random_floats(tokens * cols, 2), tokens, cols, bf16),
      d_y(random_floats(tokens * rows, 3), tokens, rows, bf16);
  Packed packed = pack(weight, rows, cols, bf16);
  TestVector<char> first_y, first_d_x;
  for (const int threads : {1, 2, 3, 2}) {
    const Host other(threads);
    const Rows y = linear(packed, x, nullptr, tokens, rows, cols, bf16, other),
               d_x = linear_gradient(packed, d_y, tokens, rows, cols, bf16, other);
    if (first_y.empty()) {
      first_y = y.bytes();
      first_d_x = d_x.bytes();
    }
    EXPECT_TRUE(y.bytes() == first_y) << threads << " threads";
    EXPECT_TRUE(d_x.bytes() == first_d_x) << threads << " threads";
  }
}

TEST_F(QuantizerTest, refusals_say_why) {
  auto q = query(4, 4);
  EXPECT_EQ(support_of(plugin, q).score, 100) << support_of(plugin, q).reason;
  q.dtype = f16;
  EXPECT_STREQ(support_of(plugin, q).reason, "weights in float16 not supported");
  q = query(4, 4);
  q.device.type = FVLM_CUDA;
  EXPECT_STREQ(support_of(plugin, q).reason, "runs on the CPU only");
}

TEST_F(QuantizerTest, broken_arguments_are_refused) {
  Packed packed{std::vector<std::int8_t>(16), Floats(4)};
  Tensor codes(packed.codes.data(), i8, {4, 4}), scales(packed.scales.data(), f32, {4});
  Rows x(5, 4, f32), y(5, 4, f32), narrow(5, 3, f32), other(5, 4, bf16);
  struct Case {
    fvlm_tensor *x, *y;
    std::int64_t tokens;
    std::uint64_t workspace_less;
    fvlm_status status;
    const char* text;
  };
  const Case cases[] = {
      {x.tensor(), y.tensor(), 4, 0, FVLM_ERROR_ARGUMENT, "x has 5 tokens, but the query allows at most 4"},
      {narrow.tensor(), y.tensor(), 5, 0, FVLM_ERROR_ARGUMENT, "x: expected shape [5, 4] but got [5, 3]"},
      {x.tensor(), narrow.tensor(), 5, 0, FVLM_ERROR_ARGUMENT, "y: expected shape [5, 4] but got [5, 3]"},
      {other.tensor(), y.tensor(), 5, 0, FVLM_ERROR_ARGUMENT,
       "x: expected float32 of rank 2 but got bfloat16 of rank 2"},
      {x.tensor(), nullptr, 5, 0, FVLM_ERROR_ARGUMENT, "y is NULL"},
      {x.tensor(), y.tensor(), 5, 1, FVLM_ERROR_WORKSPACE, "expected a workspace of at least"},
  };
  for (const Case& c : cases) {
    const auto q = query(4, 4, c.tokens);
    fvlm_requirements requirements{};
    requirements.struct_size = sizeof requirements;
    ASSERT_EQ(plugin->requirements(plugin.instance(), &q, &requirements, nullptr), FVLM_OK);
    Call call(host, requirements.forward_workspace - c.workspace_less);
    const fvlm_quantizer_linear arguments{sizeof arguments, {codes.get(), scales.get()}, c.x, nullptr, c.y};
    EXPECT_EQ(plugin->linear(plugin.instance(), call.get(), &q, &arguments), c.status) << c.text;
    EXPECT_EQ(call.error().substr(0, std::strlen(c.text)), c.text);
  }
  Rows columns(4, 5, f32); // x as a transposed view: its last dimension is not contiguous
  std::int64_t shape[] = {5, 4}, strides[] = {1, 5};
  fvlm_tensor view = *columns.tensor();
  view.shape = shape;
  view.strides = strides;
  const auto q = query(4, 4, 5);
  Call call = call_for(q);
  const fvlm_quantizer_linear arguments{sizeof arguments, {codes.get(), scales.get()}, &view, nullptr, y.tensor()};
  EXPECT_EQ(plugin->linear(plugin.instance(), call.get(), &q, &arguments), FVLM_ERROR_UNSUPPORTED);
  EXPECT_EQ(call.error(), "x: its last dimension must be contiguous");
}

TEST_F(QuantizerTest, codes_gradients_and_products_are_those_of_torch) {
  if (!python_has_torch()) GTEST_SKIP() << no_torch;
  const Oracle oracle("");
  const std::int64_t rows = 130, cols = 257, tokens = 37;
  const Floats fake_there = oracle.floats("fake.f32"), scale = oracle.floats("scale.f32");
  Rows weight(oracle.floats("weight.f32"), rows, cols, f32), d_fake(oracle.floats("d_fake.f32"), rows, cols, f32),
      x(oracle.floats("x.f32"), tokens, cols, f32), bias(oracle.floats("bias.f32"), 1, rows, f32),
      d_y(oracle.floats("d_y.f32"), tokens, rows, f32);

  EXPECT_EQ(fake_gradient(weight, d_fake, rows, cols), oracle.floats("d_weight.f32"));

  const Floats fake_here = fake(weight, rows, cols);
  Packed packed = pack(weight, rows, cols);
  EXPECT_EQ(packed.scales, scale);
  // PyTorch multiplies by 1 / scale, the ABI divides. They differ only where w / scale is exactly halfway between two
  // codes, which none of these weights is.
  EXPECT_EQ(fake_here, fake_there);

  Tensor bias_tensor(bias.tensor()->data, f32, {rows});
  const Floats y = linear(packed, x, bias_tensor.get(), tokens, rows, cols, f32, host).floats(),
               d_x = linear_gradient(packed, d_y, tokens, rows, cols, f32, host).floats();
  const Floats y_there = oracle.floats("y.f32"), d_x_there = oracle.floats("d_x.f32");
  for (std::size_t i = 0; i < y.size(); ++i) {
    ASSERT_NEAR(y[i], y_there[i], 1e-5 * std::fabs(y_there[i]) + 1e-5 * scale[i % 130] * 127 * 16) << "y " << i;
  }
  for (std::size_t i = 0; i < d_x.size(); ++i) ASSERT_NEAR(d_x[i], d_x_there[i], 5e-3) << "d_x " << i;
}

} // namespace
} // namespace fvlm::testing
