// loss_test.cpp: tests loss-cuda in bfloat16, where softmax is fused into the logits product, against float64 loops.
#include "common/testing/loss.h"

namespace fvlm::testing {
namespace {

class LossCuda : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!test_device().missing.empty()) GTEST_SKIP() << test_device().missing;
  }
};

const std::vector<Shape> shapes{
    {"one of each", 1, 8, 1, 0, bf16},
    {"no token has a loss", 9, 16, 40, 1, bf16},
    {"a tile and a bit", 130, 72, 200, 3, bf16},
    {"rows of tiles in pairs, and rows apart", 256, 64, 390, 3, bf16, 8},
    {"three rows of tiles", 300, 200, 1003, 3, bf16, 0, bf16},
    {"strided, d_weight too", 140, 40, 777, 3, bf16, 24, bf16},
    {"strided, d_weight in float32", 140, 40, 777, 3, bf16, 24},
    {"pairs of rows of tiles, and columns of tiles", 300, 400, 1003, 3, bf16},
    {"rows that TMA does not support", 31, 24, 77, 3, bf16, 5},
    {"bounded logits", 300, 200, 1003, 3, bf16, 0, bf16, 1.5},
    {"bounded logits, d_weight in float32", 140, 40, 777, 3, bf16, 24, f32, 2},
    {"bounded logits, rows that TMA does not support", 31, 24, 77, 3, bf16, 5, f32, 1.5},
    {"bounded logits of a large vocabulary, rows that TMA does not support", 20, 9, 9001, 3, bf16, 5, f32, 2},
};

// The root mean square: the tolerance scales with a value's own rounding and with that of the summed values.
double spread(const std::vector<double>& values) {
  double sum = 0;
  for (const double value : values) sum += value * value;
  return std::sqrt(sum / static_cast<double>(std::max<std::size_t>(values.size(), 1)));
}
void expect_near(const GuardedTensor& got, const std::vector<double>& expected, const char* what,
                 double tolerance = 0.012) {
  const double usual = spread(expected);
  for (std::int64_t i = 0; i < got.count(); ++i) {
    const double right = expected[static_cast<std::size_t>(i)];
    ASSERT_NEAR(got.value(i), right, tolerance * (std::fabs(right) + usual)) << what << "[" << i << "]";
  }
}

TEST_F(LossCuda, agrees_with_float64_loops) {
  compare_with_float64_loops(shapes, [](const Shape& s, const Results& r, const Expected& e) {
    expect_close(r.losses, e.losses, s.row_gap % 8 == 0 ? 1e-5 : 4e-3, "losses"); // with or without rounded logits
    expect_near(r.d_hidden, e.d_hidden, "d_hidden");
    expect_near(r.d_weight, e.d_weight, "d_weight");
  });
}

TEST_F(LossCuda, accumulates_into_d_weight_where_asked) {
  for (const Shape& s : {Shape{"", 300, 16, 200, 3, bf16}, Shape{"", 300, 8, 30000, 3, bf16},
                         Shape{"", 300, 72, 333, 3, bf16, 0, bf16}}) {
    Inputs in(s);
    Expected e = in.expected();
    for (double& d : e.d_weight) d += 99;
    expect_near(run_forward_backward(s, in, 2, true, true, true).d_weight, e.d_weight, "in two");
    expect_near(run_fused(s, in, 2, true, true, true).d_weight, e.d_weight, "at once");
  }
}

// More tokens than fit into a chunk, compared with separate calls that split the tokens elsewhere.
TEST_F(LossCuda, goes_through_chunks) {
  const std::int64_t width = 8, vocab = 49152, first = 400, second = 200;
  const Shape all{"", first + second, width, vocab, 3, bf16};
  Inputs in(all);
  const Results whole = run_fused(all, in, 1);
  Shape part{"", first, width, vocab, 3, bf16};
  std::vector<double> losses, d_hidden, d_weight(static_cast<std::size_t>(vocab * width));
  for (const std::int64_t begin : {std::int64_t{0}, first}) {
    part.tokens = begin == 0 ? first : second;
    Inputs some(part);
    for (std::int64_t t = 0; t < part.tokens; ++t) {
      some.targets.set(t, static_cast<double>(in.target[static_cast<std::size_t>(begin + t)]));
      some.d_losses.set(t, in.d_losses.value(begin + t));
      for (std::int64_t c = 0; c < width; ++c) some.hidden.set(t * width + c, in.hidden.value((begin + t) * width + c));
    }
    const Results r = run_fused(part, some, 1);
    for (const float value : r.losses.values()) losses.push_back(value);
    for (const float value : r.d_hidden.values()) d_hidden.push_back(value);
    const auto more = r.d_weight.values();
    for (std::size_t i = 0; i < more.size(); ++i) d_weight[i] += more[i];
  }
  expect_close(whole.losses, losses, 1e-6, "losses");
  expect_near(whole.d_hidden, d_hidden, "d_hidden");
  expect_near(whole.d_weight, d_weight, "d_weight");
}

TEST_F(LossCuda, leaves_out_the_gradients_that_nobody_wants) {
  const Shape s{"", 50, 24, 200, 3, bf16};
  Inputs in(s);
  const Expected e = in.expected();
  const std::vector<float> untouched_hidden(50 * 24, 99), untouched_weight(200 * 24, 99);
  for (const bool fused : {false, true}) {
    const auto run = fused ? &run_fused : &run_forward_backward;
    const Results frozen = run(s, in, 2, true, false, false);
    expect_near(frozen.d_hidden, e.d_hidden, "d_hidden with a frozen head");
    EXPECT_EQ(frozen.d_weight.values(), untouched_weight);
    const Results head_only = run(s, in, 2, false, true, false);
    expect_near(head_only.d_weight, e.d_weight, "d_weight alone");
    EXPECT_EQ(head_only.d_hidden.values(), untouched_hidden);
  }
}

// Labels so unlikely that exponentials relative to them overflow: their rows are recomputed.
TEST_F(LossCuda, survives_losses_of_hundreds) {
  for (const float softcap : {0.0f, 400.0f})
    for (const bool fused : {false, true}) {
      SCOPED_TRACE(softcap);
      const Shape s{"", 140, 16, 300, 3, bf16, 0, f32, softcap};
      Inputs in(s);
      in.hidden.random(1, 300);
      const Expected e = in.expected();
      ASSERT_GT(*std::max_element(e.losses.begin(), e.losses.end()), 300);
      const Results r = fused ? run_fused(s, in, 1) : run_forward_backward(s, in, 1);
      expect_close(r.losses, e.losses, 1e-5, "losses");
      expect_near(r.d_hidden, e.d_hidden, "d_hidden");
      expect_near(r.d_weight, e.d_weight, "d_weight", 0.03); // differences of large products
    }
}

TEST_F(LossCuda, lets_a_nan_through_to_its_own_token_only) {
  const Shape s{"", 20, 16, 300, 0, bf16};
  Inputs in(s);
  in.hidden.set(5 * 16 + 3, std::numeric_limits<double>::quiet_NaN());
  const Results r = run_fused(s, in, 2);
  for (std::int64_t t = 0; t < 20; ++t) {
    EXPECT_EQ(std::isnan(r.losses.value(t)), t == 5) << "token " << t;
    EXPECT_EQ(std::isnan(r.d_hidden.value(t * 16)), t == 5) << "token " << t;
  }
}

TEST_F(LossCuda, has_the_same_bits_each_time) {
  for (const Shape& s : {Shape{"", 300, 72, 1003, 3, bf16}, Shape{"", 300, 72, 1003, 3, bf16, 0, f32, 2},
                         Shape{"", 530, 8, 49152, 3, bf16}, Shape{"", 530, 8, 49152, 3, bf16, 0, bf16}}) {
    Inputs in(s);
    const Results one = run_fused(s, in, 1, true, true, true), again = run_fused(s, in, 1, true, true, true);
    EXPECT_EQ(one.losses.bytes(), again.losses.bytes());
    EXPECT_EQ(one.d_hidden.bytes(), again.d_hidden.bytes());
    EXPECT_EQ(one.d_weight.bytes(), again.d_weight.bytes());
  }
}

TEST_F(LossCuda, needs_no_more_than_64_MiB) {
  const Host host(1);
  const LossTable plugin(FVLM_TEST_LIBRARY, FVLM_LOSS_KIND, host);
  for (const std::int64_t width : {576, 2048})
    for (const std::int64_t tokens : {1024, 8192})
      EXPECT_LE(requirements_of(plugin, query_of({"", tokens, width, 49152, 0, bf16})).backward_workspace, 64u << 20);
}

} // namespace
} // namespace fvlm::testing
