// The plugin against plain loops in float64, over the shapes at the edges of the contract.
#include "common/testing/guarded.h"

#include <limits>

namespace fvlm::testing {
namespace {

using LossTable = Plugin<fvlm_loss_v1>;

struct Shape {
  const char* name;
  int64_t tokens, width, vocab;
  int every = 3; // each such token has no loss; 1: none has one; 0: all have
  fvlm_dtype dtype = f32;
  int64_t row_gap = 0;
};

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
};

struct Expected {
  std::vector<double> losses, d_hidden, d_weight;
};

struct Inputs {
  explicit Inputs(const Shape& s)
      : hidden(s.dtype, {s.tokens, s.width}, s.row_gap), weight(s.dtype, {s.vocab, s.width}, s.row_gap),
        targets(i64, {s.tokens}), d_losses(f32, {s.tokens}) {
    hidden.random(1);
    weight.random(2, 1.5f / std::sqrt(static_cast<float>(s.width)));
    d_losses.random(3);
    for (int64_t t = 0; t < s.tokens; ++t) {
      const bool none = s.every > 0 && t % s.every == s.every - 1;
      target.push_back(none ? -100 : (t * 7919 + 13) % s.vocab);
      targets.set(t, static_cast<double>(target.back()));
    }
  }

  Expected expected() const {
    const int64_t tokens = hidden.shape()[0], width = hidden.shape()[1], vocab = weight.shape()[0];
    const auto h = hidden.values(), w = weight.values();
    Expected e;
    e.losses.assign(h.size() / static_cast<size_t>(width), 0);
    e.d_hidden.assign(h.size(), 0);
    e.d_weight.assign(w.size(), 0);
    std::vector<double> p(static_cast<size_t>(vocab));
    for (int64_t t = 0; t < tokens; ++t) {
      const int64_t wanted = target[static_cast<size_t>(t)];
      if (wanted < 0) continue;
      double largest = -1e300, total = 0;
      for (int64_t v = 0; v < vocab; ++v) {
        double dot = 0;
        for (int64_t c = 0; c < width; ++c)
          dot += static_cast<double>(h[static_cast<size_t>(t * width + c)]) * w[static_cast<size_t>(v * width + c)];
        p[static_cast<size_t>(v)] = dot;
        largest = std::max(largest, dot);
      }
      for (const double x : p) total += std::exp(x - largest);
      const double log_sum = largest + std::log(total);
      e.losses[static_cast<size_t>(t)] = log_sum - p[static_cast<size_t>(wanted)];
      for (int64_t v = 0; v < vocab; ++v) {
        const double d = (std::exp(p[static_cast<size_t>(v)] - log_sum) - (v == wanted)) * d_losses.value(t);
        for (int64_t c = 0; c < width; ++c) {
          e.d_hidden[static_cast<size_t>(t * width + c)] += d * w[static_cast<size_t>(v * width + c)];
          e.d_weight[static_cast<size_t>(v * width + c)] += d * h[static_cast<size_t>(t * width + c)];
        }
      }
    }
    return e;
  }

  // Tokens without a loss may hold anything.
  void poison() {
    const int64_t width = hidden.shape()[1];
    for (size_t t = 0; t < target.size(); ++t) {
      if (target[t] >= 0) continue;
      for (int64_t c = 0; c < width; ++c)
        hidden.set(static_cast<int64_t>(t) * width + c, std::numeric_limits<double>::quiet_NaN());
      d_losses.set(static_cast<int64_t>(t), std::numeric_limits<double>::quiet_NaN());
    }
  }

  GuardedTensor hidden, weight, targets, d_losses;
  std::vector<int64_t> target;
};

struct Results {
  explicit Results(const Shape& s)
      : losses(f32, {s.tokens}), d_hidden(s.dtype, {s.tokens, s.width}, s.row_gap),
        d_weight(f32, {s.vocab, s.width}, s.row_gap) {
    losses.fill(99), d_hidden.fill(99), d_weight.fill(99);
  }
  void expect_intact() const {
    losses.expect_intact("losses");
    d_hidden.expect_intact("d_hidden");
    d_weight.expect_intact("d_weight");
  }
  GuardedTensor losses, d_hidden, d_weight;
};

fvlm_loss_query query_of(const Shape& s, bool d_hidden = true, bool d_weight = true) {
  fvlm_loss_query query{};
  query.struct_size = sizeof query;
  query.needs_d_hidden = d_hidden;
  query.needs_d_weight = d_weight;
  query.device = {FVLM_CPU, 0};
  query.dtype = s.dtype;
  query.gradient_dtype = f32;
  query.tokens = s.tokens;
  query.width = s.width;
  query.vocab = s.vocab;
  return query;
}

fvlm_requirements requirements_of(const LossTable& plugin, const fvlm_loss_query& query) {
  fvlm_requirements needs{};
  needs.struct_size = sizeof needs;
  EXPECT_EQ(plugin->requirements(plugin.instance(), &query, &needs, nullptr), FVLM_OK);
  return needs;
}

// forward, then backward
Results in_two(const Shape& s, Inputs& in, int threads, bool d_hidden = true, bool d_weight = true,
               bool accumulate = false) {
  const Host host(threads);
  const LossTable plugin(FVLM_TEST_LIBRARY, FVLM_LOSS_KIND, host);
  const fvlm_loss_query query = query_of(s, d_hidden, d_weight);
  const fvlm_requirements needs = requirements_of(plugin, query);
  Results r(s);
  GuardedTensor saved(f32, {s.tokens});
  {
    Call call(host, needs.forward_workspace);
    fvlm_loss_forward a{};
    a.struct_size = sizeof a;
    a.hidden = in.hidden.get(), a.weight = in.weight.get(), a.targets = in.targets.get(), a.losses = r.losses.get();
    a.saved[0] = saved.get();
    EXPECT_EQ(plugin->forward(plugin.instance(), call.get(), &query, &a), FVLM_OK) << call.error();
    EXPECT_TRUE(call.intact());
  }
  Call call(host, needs.backward_workspace);
  fvlm_loss_backward a{};
  a.struct_size = sizeof a;
  a.accumulate_d_weight = accumulate;
  a.hidden = in.hidden.get(), a.weight = in.weight.get(), a.targets = in.targets.get(), a.d_losses = in.d_losses.get();
  a.saved[0] = saved.get();
  a.d_hidden = d_hidden ? r.d_hidden.get() : nullptr;
  a.d_weight = d_weight ? r.d_weight.get() : nullptr;
  EXPECT_EQ(plugin->backward(plugin.instance(), call.get(), &query, &a), FVLM_OK) << call.error();
  EXPECT_TRUE(call.intact());
  r.expect_intact();
  return r;
}

Results at_once(const Shape& s, Inputs& in, int threads, bool d_hidden = true, bool d_weight = true,
                bool accumulate = false) {
  const Host host(threads);
  const LossTable plugin(FVLM_TEST_LIBRARY, FVLM_LOSS_KIND, host);
  const fvlm_loss_query query = query_of(s, d_hidden, d_weight);
  Results r(s);
  Call call(host, requirements_of(plugin, query).backward_workspace);
  fvlm_loss_fused a{};
  a.struct_size = sizeof a;
  a.accumulate_d_weight = accumulate;
  a.hidden = in.hidden.get(), a.weight = in.weight.get(), a.targets = in.targets.get(), a.d_losses = in.d_losses.get();
  a.losses = r.losses.get();
  a.d_hidden = d_hidden ? r.d_hidden.get() : nullptr;
  a.d_weight = d_weight ? r.d_weight.get() : nullptr;
  EXPECT_EQ(plugin->fused(plugin.instance(), call.get(), &query, &a), FVLM_OK) << call.error();
  EXPECT_TRUE(call.intact());
  r.expect_intact();
  return r;
}

class LossChunked : public ::testing::TestWithParam<std::string> {
 protected:
  void SetUp() override { setenv("FVLM_CPU_LEVEL", GetParam().c_str(), 1); }
  void TearDown() override { unsetenv("FVLM_CPU_LEVEL"); }
};

TEST_P(LossChunked, agrees_with_float64_loops) {
  for (const Shape& s : shapes) {
    SCOPED_TRACE(s.name);
    Inputs in(s);
    const Expected e = in.expected();
    in.poison();
    for (const bool fused : {false, true}) {
      SCOPED_TRACE(fused ? "fused" : "forward and backward");
      const Results r = fused ? at_once(s, in, 2) : in_two(s, in, 2);
      expect_close(r.losses, e.losses, 3e-6, "losses");
      expect_close(r.d_hidden, e.d_hidden, s.dtype.bits == 16 ? 5e-3 : 5e-6, "d_hidden");
      expect_close(r.d_weight, e.d_weight, 1e-5, "d_weight");
    }
  }
}

TEST_P(LossChunked, accumulates_into_d_weight_where_asked) {
  for (const Shape& s : {Shape{"", 1300, 16, 40}, {"", 40, 19, 300}, {"", 9, 16, 40, 1}}) {
    Inputs in(s);
    Expected e = in.expected();
    for (double& d : e.d_weight) d += 99;
    expect_close(in_two(s, in, 2, true, true, true).d_weight, e.d_weight, 1e-5, "in two");
    expect_close(at_once(s, in, 2, true, true, true).d_weight, e.d_weight, 1e-5, "at once");
  }
}

TEST_P(LossChunked, leaves_out_the_gradients_that_nobody_wants) {
  const Shape s{"", 50, 24, 200};
  Inputs in(s);
  const Expected e = in.expected();
  const std::vector<float> untouched_hidden(50 * 24, 99), untouched_weight(200 * 24, 99);
  for (const bool fused : {false, true}) {
    const auto run = fused ? &at_once : &in_two;
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
    const auto run = fused ? &at_once : &in_two;
    const Results one = run(s, in, 1, true, true, false);
    for (const int threads : {2, 3}) {
      const Results many = run(s, in, threads, true, true, false);
      EXPECT_EQ(one.losses.bytes(), many.losses.bytes()) << threads << " threads";
      EXPECT_EQ(one.d_hidden.bytes(), many.d_hidden.bytes()) << threads << " threads";
      EXPECT_EQ(one.d_weight.bytes(), many.d_weight.bytes()) << threads << " threads";
    }
  }
}

// Logits of hundreds, of which each loss is a small difference.
TEST_P(LossChunked, survives_large_logits) {
  const Shape s{"", 20, 16, 300};
  Inputs in(s);
  in.hidden.random(1, 100);
  const Expected e = in.expected();
  const Results r = at_once(s, in, 1);
  expect_close(r.losses, e.losses, 1e-4, "losses");
  expect_close(r.d_hidden, e.d_hidden, 2e-3, "d_hidden");
}

TEST_P(LossChunked, lets_a_nan_through_to_its_own_token_only) {
  const Shape s{"", 20, 16, 300, 0};
  Inputs in(s);
  in.hidden.set(5 * 16 + 3, std::numeric_limits<double>::quiet_NaN());
  const Results r = at_once(s, in, 2);
  for (int64_t t = 0; t < 20; ++t) EXPECT_EQ(std::isnan(r.losses.value(t)), t == 5) << "token " << t;
}

INSTANTIATE_TEST_SUITE_P(levels, LossChunked, ::testing::ValuesIn(cpu_levels()),
                         [](const auto& level) { return level.param; });

// The reference keeps all logits and makes their softmax beside them.
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
  EXPECT_EQ(call.error(), "targets[3] is 40, the vocabulary has 40 entries");
}

} // namespace
} // namespace fvlm::testing
