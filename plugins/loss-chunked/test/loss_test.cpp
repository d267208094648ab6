// loss_test.cpp: the plugin against plain loops in float64, at the edge shapes of the contract.
#include "common/testing/loss.h"

namespace fvlm::testing {
namespace {

const std::vector<Shape> shapes{
    {"one of each", 1, 1, 1, 0},
    {"one token", 1, 64, 300, 0},
    {"small", 7, 16, 33},
    {"quickstart", 200, 64, 512},
    {"vocabulary of a block", 50, 32, 128},
    {"vocabulary of many blocks and a bit", 31, 48, 128 * 11 + 5},
    {"odd everything", 67, 37, 391},
    {"narrow and odd", 20, 3, 1000},
    {"wide", 13, 1100, 150},
    {"several chunks", 1300, 8, 40},
    {"no token has a loss", 9, 16, 40, 1},
    {"no tokens", 0, 16, 40},
    {"strided", 30, 40, 200, 3, f32, 9},
    {"bfloat16", 60, 64, 300, 3, bf16},
    {"bfloat16, odd, strided", 31, 27, 77, 3, bf16, 5},
    {"bounded logits", 67, 37, 391, 3, f32, 0, f32, 2},
    {"logits near their bound in several chunks", 1300, 8, 40, 3, f32, 0, f32, 0.5},
    {"bounded logits in bfloat16", 60, 64, 300, 3, bf16, 0, f32, 15},
};

class LossChunked : public ::testing::TestWithParam<std::string> {
 protected:
  void SetUp() override { setenv("FVLM_CPU_LEVEL", GetParam().c_str(), 1); }
  void TearDown() override { unsetenv("FVLM_CPU_LEVEL"); }
};

TEST_P(LossChunked, agrees_with_float64_loops) {
  compare_with_float64_loops(shapes, [](const Shape& s, const Results& r, const Expected& e) {
    expect_close(r.losses, e.losses, 3e-6, "losses");
    expect_close(r.d_hidden, e.d_hidden, s.dtype.bits == 16 ? 5e-3 : 5e-6, "d_hidden");
    expect_close(r.d_weight, e.d_weight, 1e-5, "d_weight");
  });
}

TEST_P(LossChunked, accumulates_into_d_weight_where_asked) {
  for (const Shape& s : {Shape{"", 1300, 16, 40}, {"", 40, 19, 300}, {"", 9, 16, 40, 1}}) {
    Inputs in(s);
    Expected e = in.expected();
    for (double& d : e.d_weight) d += 99;
    expect_close(run_forward_backward(s, in, 2, true, true, true).d_weight, e.d_weight, 1e-5, "in two");
    expect_close(run_fused(s, in, 2, true, true, true).d_weight, e.d_weight, 1e-5, "at once");
  }
}

TEST_P(LossChunked, leaves_out_the_gradients_that_nobody_wants) {
  const Shape s{"", 50, 24, 200};
  Inputs in(s);
  const Expected e = in.expected();
  const std::vector<float> untouched_hidden(50 * 24, 99), untouched_weight(200 * 24, 99);
  for (const bool fused : {false, true}) {
    const auto run = fused ? &run_fused : &run_forward_backward;
    const Results frozen = run(s, in, 2, true, false, false);
    expect_close(frozen.d_hidden, e.d_hidden, 5e-6, "d_hidden with a frozen head");
    EXPECT_EQ(frozen.d_weight.values(), untouched_weight);
    const Results head_only = run(s, in, 2, false, true, false);
    expect_close(head_only.d_weight, e.d_weight, 1e-5, "d_weight alone");
    EXPECT_EQ(head_only.d_hidden.values(), untouched_hidden);
  }
}

TEST_P(LossChunked, has_the_same_bits_with_any_number_of_threads) {
  const Shape s{"", 700, 40, 128 * 9 + 3};
  Inputs in(s);
  for (const bool fused : {false, true}) {
    const auto run = fused ? &run_fused : &run_forward_backward;
    const Results one = run(s, in, 1, true, true, false);
    for (const int threads : {2, 3}) {
      const Results many = run(s, in, threads, true, true, false);
      EXPECT_EQ(one.losses.bytes(), many.losses.bytes()) << threads << " threads";
      EXPECT_EQ(one.d_hidden.bytes(), many.d_hidden.bytes()) << threads << " threads";
      EXPECT_EQ(one.d_weight.bytes(), many.d_weight.bytes()) << threads << " threads";
    }
  }
}

// Logits in the hundreds, of which each loss is a small difference.
TEST_P(LossChunked, survives_large_logits) {
  const Shape s{"", 20, 16, 300};
  Inputs in(s);
  in.hidden.random(1, 100);
  const Expected e = in.expected();
  const Results r = run_fused(s, in, 1);
  expect_close(r.losses, e.losses, 1e-4, "losses");
  expect_close(r.d_hidden, e.d_hidden, 2e-3, "d_hidden");
}

TEST_P(LossChunked, lets_a_nan_through_to_its_own_token_only) {
  const Shape s{"", 20, 16, 300, 0};
  Inputs in(s);
  in.hidden.set(5 * 16 + 3, std::numeric_limits<double>::quiet_NaN());
  const Results r = run_fused(s, in, 2);
  for (int64_t t = 0; t < 20; ++t) EXPECT_EQ(std::isnan(r.losses.value(t)), t == 5) << "token " << t;
}

INSTANTIATE_TEST_SUITE_P(levels, LossChunked, ::testing::ValuesIn(cpu_levels()),
                         [](const auto& level) { return level.param; });

// The reference materializes all logits and their softmax.
TEST(LossChunkedContract, takes_an_eighth_of_the_memory_of_whole_logits) {
  const Host host(2);
  const LossTable plugin(FVLM_TEST_LIBRARY, FVLM_LOSS_KIND, host);
  const fvlm_requirements needs = requirements_of(plugin, query_of({"", 4096, 576, 49152}));
  const uint64_t whole = uint64_t{2} * 4096 * 49152 * 4, saved = 4096 * 4;
  EXPECT_LE(needs.forward_workspace + saved, whole / 8);
  EXPECT_LE(needs.backward_workspace + saved, whole / 8);
}

TEST(LossChunkedContract, refuses_what_it_cannot_do_with_a_reason) {
  const Host host(1);
  const LossTable plugin(FVLM_TEST_LIBRARY, FVLM_LOSS_KIND, host);
  const auto reason = [&](auto change) {
    fvlm_loss_query query = query_of({"", 4, 16, 40});
    change(query);
    const fvlm_support support = support_of(plugin, query);
    EXPECT_EQ(support.score, 0);
    return std::string(support.reason);
  };
  EXPECT_NE(reason([](auto& q) { q.gradient_dtype = bf16; }).find("d_weight"), std::string::npos);
  EXPECT_NE(reason([](auto& q) { q.dtype = {FVLM_FLOAT, 64, 1}; }).find("float64"), std::string::npos);
  EXPECT_NE(reason([](auto& q) { q.device.type = FVLM_CUDA; }).find("CPU"), std::string::npos);
}

TEST(LossChunkedContract, refuses_a_target_outside_the_vocabulary) {
  const Shape s{"", 5, 16, 40};
  const Host host(1);
  const LossTable plugin(FVLM_TEST_LIBRARY, FVLM_LOSS_KIND, host);
  const fvlm_loss_query query = query_of(s);
  Inputs in(s);
  in.targets.set(3, 40);
  Results r(s);
  Call call(host, requirements_of(plugin, query).forward_workspace);
  fvlm_loss_forward a{};
  a.struct_size = sizeof a;
  a.hidden = in.hidden.get(), a.weight = in.weight.get(), a.targets = in.targets.get(), a.losses = r.losses.get();
  EXPECT_EQ(plugin->forward(plugin.instance(), call.get(), &query, &a), FVLM_ERROR_ARGUMENT);
  EXPECT_EQ(call.error(), "targets[3] is 40, but the vocabulary has 40 entries");
}

} // namespace
} // namespace fvlm::testing
