// arena.h: parameter arenas for the tests of the optimizer plugins.
#pragma once

#include "common/testing/harness.h"
#include "common/testing/values.h"

#include <cmath>
#include <functional>

namespace fvlm::testing {

using Optimizer = Plugin<fvlm_optimizer_v1>;

struct ArenaShape {
  std::int64_t elements = 0;
  std::vector<fvlm_optimizer_segment> segments;
  std::int64_t groups = 1;
  fvlm_dtype gradient = f32, parameter = f32, state = f32;
};

// A scalar in memory that the plugin can access.
template <class Element>
class SharedScalar {
 public:
  SharedScalar(Element value) : memory_(1, value) {}
  SharedScalar& operator=(Element value) {
    memory_[0] = value; // in place, since a captured step refers to this address
    return *this;
  }
  operator Element&() { return memory_[0]; }
  operator const Element&() const { return memory_[0]; }
  Element* data() { return memory_.data(); }

 private:
  TestVector<Element> memory_;
};

// Everything that an optimizer step reads and writes. Masters and gradients start random, states at zero.
class Arena {
 public:
  Arena(const Optimizer& plugin, ArenaShape given, const std::vector<std::vector<float>>& groups)
      : shape(std::move(given)), gradient(shape.elements, shape.gradient), parameter(shape.elements, shape.parameter) {
    Random random(7);
    master.resize(static_cast<std::size_t>(shape.elements));
    for (float& value : master) value = random();
    for (std::int64_t i = 0; i < shape.elements; ++i) gradient.set(i, random());
    for (std::int64_t i = 0; i < shape.elements; ++i) parameter.set(i, 77);
    for (const auto& group : groups) hyper.insert(hyper.end(), group.begin(), group.end());
    fvlm_optimizer_state wanted[FVLM_MAX_STATES];
    const fvlm_optimizer_query asked = query();
    const int count = plugin->states(&asked, wanted);
    for (int i = 0; i < count; ++i) states.emplace_back(shape.elements, wanted[i].dtype);
  }

  fvlm_optimizer_query query() const {
    fvlm_optimizer_query q{};
    q.struct_size = sizeof q;
    q.device = test_device().device;
    q.gradient_dtype = shape.gradient;
    q.parameter_dtype = shape.parameter;
    q.state_dtype = shape.state;
    q.elements = shape.elements;
    q.segment_count = static_cast<std::int64_t>(shape.segments.size());
    q.group_count = shape.groups;
    q.segments = shape.segments.data();
    return q;
  }

  // Runs the step; a test may wrap it, for example in graph capture.
  using Runner = std::function<fvlm_status(fvlm_call& call, const std::function<fvlm_status()>& step)>;

  // Runs one step. The error text is kept in `error`.
  fvlm_status run(const Optimizer& plugin, const Host& host, const Runner& runner = nullptr) {
    const fvlm_optimizer_query q = query();
    fvlm_requirements wanted{};
    wanted.struct_size = sizeof wanted;
    char text[512] = "";
    fvlm_error sink{sizeof sink, sizeof text, text};
    const fvlm_status status = plugin->requirements(plugin.instance(), &q, &wanted, &sink);
    error = text;
    if (status != FVLM_OK) return status;
    Call call(host, wanted.forward_workspace - workspace_withheld);
    const std::int64_t n = shape.elements;
    Tensor master_tensor(master.data(), f32, {n}), parameter_tensor = parameter.tensor(),
                                                   gradient_tensor = gradient.tensor();
    std::vector<Tensor> state_tensors;
    for (Values& state : states) state_tensors.push_back(state.tensor());
    TestVector<std::int64_t> flat_segments;
    for (const auto& s : shape.segments) flat_segments.insert(flat_segments.end(), {s.offset, s.rows, s.cols, s.group});
    Tensor segments(flat_segments.data(), i64, {q.segment_count, 4});
    Tensor hyper_tensor(hyper.data(), f32, {shape.groups, static_cast<std::int64_t>(hyper.size()) / shape.groups});
    Tensor step_tensor(step.data(), i64, {1}), scale_tensor(scale.data(), f32, {1}), skip_tensor(skip.data(), i32, {1});
    fvlm_optimizer_step arguments{};
    arguments.struct_size = sizeof arguments;
    arguments.master = master_tensor.get();
    arguments.parameter = shape.parameter.bits == 32 ? nullptr : parameter_tensor.get();
    arguments.gradient = gradient_tensor.get();
    for (std::size_t i = 0; i < states.size(); ++i) arguments.state[i] = state_tensors[i].get();
    arguments.segments = segments.get();
    arguments.hyper = hyper_tensor.get();
    arguments.step = step_tensor.get();
    arguments.scale = scale_tensor.get();
    arguments.skip = skip_tensor.get();
    const auto take = [&] { return plugin->step(plugin.instance(), call.get(), &q, &arguments); };
    const fvlm_status result = runner ? runner(*call.operator->(), take) : take();
    test_device().wait();
    error = call.error();
    return result;
  }

  // Everything that a step may change, for comparing bit by bit.
  std::vector<char> bits() const {
    std::vector<char> all(reinterpret_cast<const char*>(master.data()),
                          reinterpret_cast<const char*>(master.data() + master.size()));
    all.insert(all.end(), parameter.bytes().begin(), parameter.bytes().end());
    for (const Values& state : states) all.insert(all.end(), state.bytes().begin(), state.bytes().end());
    return all;
  }

  ArenaShape shape;
  TestVector<float> master, hyper;
  Values gradient, parameter;
  std::vector<Values> states;
  SharedScalar<std::int64_t> step = 1;
  SharedScalar<float> scale = 1;
  SharedScalar<std::int32_t> skip = 0;
  std::uint64_t workspace_withheld = 0; // bytes by which the workspace is smaller than requested
  std::string error;
};

// Which elements belong to a parameter slice.
inline std::vector<bool> covered(const ArenaShape& shape) {
  std::vector<bool> inside(static_cast<std::size_t>(shape.elements));
  for (const auto& s : shape.segments) {
    for (std::int64_t i = 0; i < s.rows * s.cols; ++i) inside[static_cast<std::size_t>(s.offset + i)] = true;
  }
  return inside;
}

// Expects that a step changes every element of every slice and nothing else.
inline void expect_gaps_untouched(Arena& arena, const Optimizer& plugin, const Host& host) {
  const Arena before = arena;
  ASSERT_EQ(arena.run(plugin, host), FVLM_OK) << arena.error;
  const std::vector<bool> inside = covered(arena.shape);
  for (std::size_t i = 0; i < inside.size(); ++i) {
    const auto at = static_cast<std::int64_t>(i);
    if (inside[i]) {
      EXPECT_NE(arena.master[i], before.master[i]) << "element " << i << " of a segment was not stepped";
      continue;
    }
    EXPECT_EQ(arena.master[i], before.master[i]) << "element " << i;
    EXPECT_EQ(arena.parameter.get(at), before.parameter.get(at)) << "element " << i;
    for (const Values& state : arena.states) EXPECT_EQ(state.get(at), 0) << "element " << i;
  }
}

inline void expect_same_bits_with_any_threads(const Arena& fresh, const Optimizer& plugin) {
  std::vector<char> first;
  for (const int threads : {1, 2, 3, 2}) {
    const Host host(threads);
    Arena arena = fresh;
    for (arena.step = 1; arena.step <= 2; ++arena.step) ASSERT_EQ(arena.run(plugin, host), FVLM_OK) << arena.error;
    if (first.empty()) first = arena.bits();
    EXPECT_EQ(arena.bits(), first) << threads << " threads";
  }
}

// Steps through gradients [steps, elements] from `start` and compares with parameters [steps, elements]. The difference
// is relative for parameters above 1.
inline double largest_difference_over_steps(Arena& arena, const Optimizer& plugin, const Host& host,
                                            const std::vector<float>& start, const std::vector<float>& gradients,
                                            const std::vector<float>& parameters) {
  const std::size_t n = arena.master.size();
  if (start.size() != n || gradients.size() != parameters.size() || gradients.size() % n != 0) {
    throw std::runtime_error("the oracle has other shapes");
  }
  arena.master.assign(start.begin(), start.end());
  double worst = 0;
  for (std::size_t t = 0; t < gradients.size() / n; ++t) {
    for (std::size_t i = 0; i < n; ++i) arena.gradient.set(static_cast<std::int64_t>(i), gradients[t * n + i]);
    arena.step = static_cast<std::int64_t>(t) + 1;
    if (arena.run(plugin, host) != FVLM_OK) throw std::runtime_error(arena.error);
    for (std::size_t i = 0; i < n; ++i) {
      const double expected = parameters[t * n + i], difference = std::fabs(arena.master[i] - expected);
      worst = std::max(worst, difference / std::max(1.0, std::fabs(expected)));
      if (std::isnan(difference)) throw std::runtime_error("NaN at element " + std::to_string(i));
    }
  }
  return worst;
}

} // namespace fvlm::testing
