// loss.h: what the tests of the loss plugins share: calls for a shape, and reference loops in float64.
#pragma once

#include "common/testing/guarded.h"

#include <limits>

namespace fvlm::testing {

using LossTable = Plugin<fvlm_loss_v1>;

struct Shape {
  const char* name;
  std::int64_t tokens, width, vocab;
  int every = 3; // every such token has no target; 1: no token has one; 0: all have
  fvlm_dtype dtype = f32;
  std::int64_t row_gap = 0;
  fvlm_dtype gradient = f32; // of d_weight
  float softcap = 0;
};

struct Expected {
  std::vector<double> losses, d_hidden, d_weight;
};

struct Inputs {
  explicit Inputs(const Shape& s)
      : hidden(s.dtype, {s.tokens, s.width}, s.row_gap), weight(s.dtype, {s.vocab, s.width}, s.row_gap),
        targets(i64, {s.tokens}), d_losses(f32, {s.tokens}), softcap(s.softcap) {
    hidden.random(1);
    weight.random(2, 1.5f / std::sqrt(static_cast<float>(s.width)));
    d_losses.random(3);
    for (std::int64_t t = 0; t < s.tokens; ++t) {
      const bool none = s.every > 0 && t % s.every == s.every - 1;
      target.push_back(none ? -100 : (t * 7919 + 13) % s.vocab);
      targets.set(t, static_cast<double>(target.back()));
    }
  }

  Expected expected() const {
    const std::int64_t tokens = hidden.shape()[0], width = hidden.shape()[1], vocab = weight.shape()[0];
    const auto h = hidden.values(), w = weight.values();
    Expected e;
    e.losses.assign(h.size() / static_cast<std::size_t>(width), 0);
    e.d_hidden.assign(h.size(), 0);
    e.d_weight.assign(w.size(), 0);
    std::vector<double> p(static_cast<std::size_t>(vocab));
    for (std::int64_t t = 0; t < tokens; ++t) {
      const std::int64_t wanted = target[static_cast<std::size_t>(t)];
      if (wanted < 0) continue;
      double largest = -1e300, total = 0;
      for (std::int64_t v = 0; v < vocab; ++v) {
        double dot = 0;
        for (std::int64_t c = 0; c < width; ++c)
          dot += static_cast<double>(h[static_cast<std::size_t>(t * width + c)]) *
                 w[static_cast<std::size_t>(v * width + c)];
        if (softcap != 0) dot = softcap * std::tanh(dot / softcap);
        p[static_cast<std::size_t>(v)] = dot;
        largest = std::max(largest, dot);
      }
      for (const double x : p) total += std::exp(x - largest);
      const double log_sum = largest + std::log(total);
      e.losses[static_cast<std::size_t>(t)] = log_sum - p[static_cast<std::size_t>(wanted)];
      for (std::int64_t v = 0; v < vocab; ++v) {
        const double logit = p[static_cast<std::size_t>(v)], part = softcap != 0 ? logit / softcap : 0;
        const double d = (std::exp(logit - log_sum) - (v == wanted)) * d_losses.value(t) * (1 - part * part);
        for (std::int64_t c = 0; c < width; ++c) {
          e.d_hidden[static_cast<std::size_t>(t * width + c)] += d * w[static_cast<std::size_t>(v * width + c)];
          e.d_weight[static_cast<std::size_t>(v * width + c)] += d * h[static_cast<std::size_t>(t * width + c)];
        }
      }
    }
    return e;
  }

  // The values of tokens without a target must not matter.
  void poison() {
    const std::int64_t width = hidden.shape()[1];
    for (std::size_t t = 0; t < target.size(); ++t) {
      if (target[t] >= 0) continue;
      for (std::int64_t c = 0; c < width; ++c)
        hidden.set(static_cast<std::int64_t>(t) * width + c, std::numeric_limits<double>::quiet_NaN());
      d_losses.set(static_cast<std::int64_t>(t), std::numeric_limits<double>::quiet_NaN());
    }
  }

  GuardedTensor hidden, weight, targets, d_losses;
  std::vector<std::int64_t> target;
  double softcap;
};

struct Results {
  explicit Results(const Shape& s)
      : losses(f32, {s.tokens}), d_hidden(s.dtype, {s.tokens, s.width}, s.row_gap),
        d_weight(s.gradient, {s.vocab, s.width}, s.row_gap) {
    losses.fill(99), d_hidden.fill(99), d_weight.fill(99);
  }
  void expect_intact() const {
    losses.expect_intact("losses");
    d_hidden.expect_intact("d_hidden");
    d_weight.expect_intact("d_weight");
  }
  GuardedTensor losses, d_hidden, d_weight;
};

inline fvlm_loss_query query_of(const Shape& s, bool d_hidden = true, bool d_weight = true) {
  fvlm_loss_query query{};
  query.struct_size = sizeof query;
  query.needs_d_hidden = d_hidden;
  query.needs_d_weight = d_weight;
  query.device = test_device().device;
  query.dtype = s.dtype;
  query.gradient_dtype = s.gradient;
  query.tokens = s.tokens;
  query.width = s.width;
  query.vocab = s.vocab;
  query.softcap = s.softcap;
  return query;
}

inline fvlm_requirements requirements_of(const LossTable& plugin, const fvlm_loss_query& query) {
  fvlm_requirements needs{};
  needs.struct_size = sizeof needs;
  EXPECT_EQ(plugin->requirements(plugin.instance(), &query, &needs, nullptr), FVLM_OK);
  return needs;
}

inline void prepare(const LossTable& plugin, const Host& host, const fvlm_loss_query& query) {
  Call call(host);
  if (!plugin->prepare) return;
  EXPECT_EQ(plugin->prepare(plugin.instance(), call.get(), &query), FVLM_OK) << call.error();
}

// Runs forward and then backward.
inline Results run_forward_backward(const Shape& s, Inputs& in, int threads, bool d_hidden = true, bool d_weight = true,
                                    bool accumulate = false) {
  const Host host(threads);
  const LossTable plugin(FVLM_TEST_LIBRARY, FVLM_LOSS_KIND, host);
  const fvlm_loss_query query = query_of(s, d_hidden, d_weight);
  const fvlm_requirements needs = requirements_of(plugin, query);
  prepare(plugin, host, query);
  Results r(s);
  GuardedTensor saved(f32, {s.tokens});
  {
    Call call(host, needs.forward_workspace);
    fvlm_loss_forward a{};
    a.struct_size = sizeof a;
    a.hidden = in.hidden.get(), a.weight = in.weight.get(), a.targets = in.targets.get(), a.losses = r.losses.get();
    a.saved[0] = saved.get();
    EXPECT_EQ(plugin->forward(plugin.instance(), call.get(), &query, &a), FVLM_OK) << call.error();
    test_device().wait();
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
  test_device().wait();
  EXPECT_TRUE(call.intact());
  r.expect_intact();
  return r;
}

inline Results run_fused(const Shape& s, Inputs& in, int threads, bool d_hidden = true, bool d_weight = true,
                         bool accumulate = false) {
  const Host host(threads);
  const LossTable plugin(FVLM_TEST_LIBRARY, FVLM_LOSS_KIND, host);
  const fvlm_loss_query query = query_of(s, d_hidden, d_weight);
  prepare(plugin, host, query);
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
  test_device().wait();
  EXPECT_TRUE(call.intact());
  r.expect_intact();
  return r;
}

// Calls compare(shape, results, expected) for each shape, with separate calls and with the fused one.
template <class Compare>
void compare_with_float64_loops(const std::vector<Shape>& shapes, const Compare& compare) {
  for (const Shape& s : shapes) {
    SCOPED_TRACE(s.name);
    Inputs in(s);
    const Expected e = in.expected();
    in.poison();
    for (const bool fused : {false, true}) {
      SCOPED_TRACE(fused ? "fused" : "forward and backward");
      compare(s, fused ? run_fused(s, in, 2) : run_forward_backward(s, in, 2), e);
    }
  }
}

} // namespace fvlm::testing
