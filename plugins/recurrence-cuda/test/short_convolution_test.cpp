// short_convolution_test.cpp: tests short convolutions against plain float64 loops, with segments of all lengths,
// states that they continue from, and rows and states whose content must not matter.
#include "common/testing/guarded.h"

#include <cmath>
#include <cuda_runtime_api.h>
#include <limits>
#include <memory>

namespace fvlm::testing {
namespace {

using Numbers = std::vector<double>;
constexpr double nan_value = std::numeric_limits<double>::quiet_NaN();

struct Case {
  const char* name;
  int64_t width;
  std::vector<int64_t> lengths; // of the segments
  int64_t rows;
  fvlm_dtype dtype = f32;
  int taps = 4;
  int64_t row_gap = 0;
  bool with_bias = false;
};

std::vector<Case> cases() {
  return {{"one number", 1, {1}, 1},
          {"no rows", 16, {}, 0},
          {"no rows, empty segments", 16, {0, 0}, 0, bf16, 4, 0, true},
          {"padding alone", 16, {}, 3},
          {"less than a vector", 5, {3, 1, 2}, 6, f32, 4, 0, true},
          {"odd, strided", 37, {10, 0, 1, 20}, 33, f32, 4, 6, true},
          {"odd, strided, bfloat16", 37, {10, 0, 1, 20}, 33, bf16, 4, 6},
          {"a segment of many tiles", 48, {700}, 700, f32, 4, 0, true},
          {"empty segments and padding", 64, {0, 3, 0, 0, 9, 2, 0, 0}, 20, bf16},
          {"a bound behind the last row", 64, {5, 30}, 20, bf16, 4, 0, true},
          {"more segments than threads", 32, std::vector<int64_t>(600, 2), 1203, bf16},
          {"one row each", 6144, std::vector<int64_t>(256, 1), 256, bf16},
          {"columns of a wider buffer", 6144, {100, 28}, 130, bf16, 4, 2048, true},
          {"float16", 72, {33, 1, 2}, 37, f16, 4, 0, true},
          {"three taps", 64, {7, 1, 2, 3, 50}, 64, bf16, 3, 0, true},
          {"two taps", 20, {7, 1, 2, 3, 50}, 63, f32, 2},
          {"one tap", 20, {7, 1, 2, 3, 50}, 63, f32, 1, 0, true},
          {"thousands of rows", 64, {2500, 1, 2, 3, 2494}, 5000, bf16, 4, 0, true},
          {"tens of thousands of rows", 8, {3, 11000, 17, 9000}, 20030, bf16, 4, 8}};
}

// Operands of a case. What no segment has, in x and d_y, is NaN; so are states that segments do not start from.
struct Problem {
  Case c;
  int64_t segments;
  GuardedTensor x, weight, bias, cu_seqlens, slots, starts, states, d_y;

  explicit Problem(const Case& of)
      : c(of), segments(static_cast<int64_t>(c.lengths.size())), x(c.dtype, {c.rows, c.width}, c.row_gap),
        weight(c.dtype, {c.width, c.taps}), bias(c.dtype, {c.width}), cu_seqlens(i32, {segments + 1}),
        slots(i32, {segments}), starts(i32, {segments}), states(c.dtype, {segments + 2, c.taps - 1, c.width}),
        d_y(c.dtype, {c.rows, c.width}, c.row_gap) {
    x.random(1), weight.random(2, 0.5f), bias.random(3), states.random(4), d_y.random(5);
    cu_seqlens.set(0, 0);
    int64_t bound = 0;
    for (int64_t i = 0; i < segments; ++i) {
      cu_seqlens.set(i + 1, static_cast<double>(bound += c.lengths[static_cast<size_t>(i)]));
      slots.set(i, static_cast<double>(segments - i));
      starts.set(i, starts_from_state(i) ? 0 : 7);
      if (!starts_from_state(i))
        for (int64_t k = 0; k < state_size(); ++k) states.set(slot(i) * state_size() + k, nan_value);
    }
    for (int64_t k = bound * c.width; k < x.count(); ++k) x.set(k, nan_value), d_y.set(k, nan_value);
  }
  int64_t state_size() const { return (c.taps - 1) * c.width; }
  int64_t slot(int64_t segment) const { return segments - segment; }
  static bool starts_from_state(int64_t segment) { return segment % 3 != 1; }

  fvlm_kernels_query query(uint32_t options) const {
    fvlm_kernels_query query{};
    query.struct_size = sizeof query;
    query.op = FVLM_OP_SHORT_CONVOLUTION;
    query.device = test_device().device;
    query.dtype = c.dtype;
    query.gradient_dtype = f32;
    query.options = options | (c.with_bias ? uint32_t{FVLM_WITH_BIAS} : 0u);
    query.rows = c.rows, query.width = c.width;
    query.segments = segments, query.taps = c.taps;
    query.max_seqlen =
        static_cast<int32_t>(segments ? std::min(c.rows, *std::max_element(c.lengths.begin(), c.lengths.end())) : 0);
    return query;
  }
};

struct Expected {
  Numbers y, d_x, d_weight, d_bias, states;
};

// One column of one segment: `all` are the rows of its state and its own, which begin at row `start`.
void add_column(const Problem& p, const Numbers& all, int64_t start, int64_t column, Expected& e) {
  const int64_t width = p.c.width, taps = p.c.taps, length = static_cast<int64_t>(all.size()) - (taps - 1);
  for (int64_t row = 0; row < length; ++row) {
    double c = p.c.with_bias ? p.bias.value(column) : 0;
    for (int64_t tap = 0; tap < taps; ++tap)
      c += static_cast<double>(p.weight.value(column * taps + tap)) * all[static_cast<size_t>(row + tap)];
    const int64_t at = (start + row) * width + column;
    const double sigmoid = 1 / (1 + std::exp(-c)), d_c = p.d_y.value(at) * sigmoid * (1 + c * (1 - sigmoid));
    e.y[static_cast<size_t>(at)] = c * sigmoid;
    e.d_bias[static_cast<size_t>(column)] += d_c;
    for (int64_t tap = 0; tap < taps; ++tap) {
      e.d_weight[static_cast<size_t>(column * taps + tap)] += d_c * all[static_cast<size_t>(row + tap)];
      const int64_t source = row + tap - (taps - 1);
      if (source >= 0)
        e.d_x[static_cast<size_t>((start + source) * width + column)] += d_c * p.weight.value(column * taps + tap);
    }
  }
}

Expected expected_of(const Problem& p, bool with_states) {
  const auto size = [](const GuardedTensor& tensor) { return static_cast<size_t>(tensor.count()); };
  Expected e{Numbers(size(p.x)), Numbers(size(p.x)), Numbers(size(p.weight)), Numbers(size(p.bias)), {}};
  const auto states = p.states.values();
  e.states.assign(states.begin(), states.end());
  for (int64_t i = 0, start = 0, stop = 0; i < p.segments; ++i, start = stop) {
    stop = std::min(p.c.rows, start + p.c.lengths[static_cast<size_t>(i)]);
    if (start == stop) continue;
    for (int64_t column = 0; column < p.c.width; ++column) {
      const auto state = [&](int64_t k) -> double& {
        return e.states[static_cast<size_t>(p.slot(i) * p.state_size() + k * p.c.width + column)];
      };
      Numbers all;
      for (int64_t k = 0; k < p.c.taps - 1; ++k) all.push_back(with_states && p.starts_from_state(i) ? state(k) : 0);
      for (int64_t row = start; row < stop; ++row) all.push_back(p.x.value(row * p.c.width + column));
      add_column(p, all, start, column, e);
      for (int64_t k = 0; k < p.c.taps - 1; ++k) state(k) = all[all.size() - static_cast<size_t>(p.c.taps - 1 - k)];
    }
  }
  return e;
}

void expect_same(const GuardedTensor& got, const Numbers& expected, const char* what) {
  int64_t wrong = 0;
  for (int64_t i = 0; i < got.count(); ++i) {
    const double is = got.value(i), right = expected[static_cast<size_t>(i)];
    if (is != right && !(std::isnan(is) && std::isnan(right)) && ++wrong == 1)
      ADD_FAILURE() << what << "[" << i << "] is " << is << ", expected " << right;
  }
  EXPECT_EQ(wrong, 0) << "elements of " << what << " differ, of " << got.count();
}

double tolerance(fvlm_dtype dtype) {
  return dtype.bits == 16 ? 6e-3 : 5e-6;
}

class ShortConvolution : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!test_device().missing.empty()) GTEST_SKIP() << test_device().missing;
    plugin_ = std::make_unique<Plugin<fvlm_kernels_v1>>(FVLM_TEST_LIBRARY, FVLM_KERNELS_KIND, host_);
  }

  static fvlm_convolution_forward forward_of(Problem& p, GuardedTensor& y, bool with_states) {
    fvlm_convolution_forward f{};
    f.struct_size = sizeof f;
    f.x = p.x.get(), f.weight = p.weight.get(), f.cu_seqlens = p.cu_seqlens.get(), f.y = y.get();
    if (p.c.with_bias) f.bias = p.bias.get();
    if (with_states) f.slots = p.slots.get(), f.starts = p.starts.get(), f.states = p.states.get();
    return f;
  }

  void run_forward(Problem& p, GuardedTensor& y, bool with_states) {
    const fvlm_kernels_query query = p.query(with_states ? FVLM_WITH_STATES : 0);
    EXPECT_GT(support_of(*plugin_, query).score, 0) << support_of(*plugin_, query).reason;
    const fvlm_convolution_forward f = forward_of(p, y, with_states);
    Call call(host_);
    EXPECT_EQ((*plugin_)->short_convolution_forward(plugin_->instance(), call.get(), &query, &f), FVLM_OK)
        << call.error();
    test_device().wait();
  }

  // Parameters whose gradient is NULL are frozen.
  void run_backward(Problem& p, GuardedTensor& d_x, GuardedTensor* d_weight, GuardedTensor* d_bias, bool accumulate,
                    fvlm_dtype gradient) {
    fvlm_kernels_query query = p.query(FVLM_WITH_BACKWARD);
    query.gradient_dtype = gradient;
    fvlm_requirements needs{};
    needs.struct_size = sizeof needs;
    EXPECT_EQ((*plugin_)->requirements(plugin_->instance(), &query, &needs, nullptr), FVLM_OK);
    fvlm_convolution_backward b{};
    b.struct_size = sizeof b;
    b.accumulate = accumulate;
    b.x = p.x.get(), b.weight = p.weight.get(), b.bias = p.c.with_bias ? p.bias.get() : nullptr;
    b.cu_seqlens = p.cu_seqlens.get(), b.d_y = p.d_y.get(), b.d_x = d_x.get();
    b.d_weight = d_weight ? d_weight->get() : nullptr, b.d_bias = d_bias ? d_bias->get() : nullptr;
    Call call(host_, needs.backward_workspace);
    EXPECT_EQ((*plugin_)->short_convolution_backward(plugin_->instance(), call.get(), &query, &b), FVLM_OK)
        << call.error();
    test_device().wait();
    EXPECT_TRUE(call.intact());
  }

  Host host_;
  std::unique_ptr<Plugin<fvlm_kernels_v1>> plugin_;
};

TEST_F(ShortConvolution, ForwardAgreesWithFloat64Loops) {
  for (const Case& c : cases()) {
    SCOPED_TRACE(c.name);
    Problem p(c);
    GuardedTensor y(c.dtype, {c.rows, c.width}, c.row_gap);
    y.fill(99);
    run_forward(p, y, false);
    expect_close(y, expected_of(p, false).y, tolerance(c.dtype), "y");
    y.expect_intact("y");
  }
}

TEST_F(ShortConvolution, SegmentsContinueFromStatesAndReplaceThem) {
  for (const Case& c : cases()) {
    SCOPED_TRACE(c.name);
    Problem p(c);
    GuardedTensor y(c.dtype, {c.rows, c.width}, c.row_gap);
    y.fill(99);
    const Expected e = expected_of(p, true);
    run_forward(p, y, true);
    expect_close(y, e.y, tolerance(c.dtype), "y");
    expect_same(p.states, e.states, "states");
    for (const GuardedTensor* t : {&y, &p.states}) t->expect_intact("an output");
  }
}

// Rows that arrive in several calls give the bits that they give at once.
TEST_F(ShortConvolution, PiecesOfASegmentGiveWhatTheWholeGives) {
  for (const fvlm_dtype dtype : {f32, bf16}) {
    Problem whole(Case{"whole", 40, {61}, 61, dtype, 4, 0, true});
    GuardedTensor y(dtype, {61, 40});
    run_forward(whole, y, false);
    GuardedTensor states(dtype, {3, 3, 40});
    int64_t begin = 0;
    for (const int64_t length : {1, 1, 2, 1, 3, 50, 2, 1}) {
      SCOPED_TRACE("rows from " + std::to_string(begin));
      Problem piece(Case{"piece", 40, {length}, length, dtype, 4, 0, true});
      for (int64_t k = 0; k < length * 40; ++k) piece.x.set(k, whole.x.value(begin * 40 + k));
      for (int64_t k = 0; k < states.count(); ++k) piece.states.set(k, begin == 0 ? nan_value : states.value(k));
      piece.starts.set(0, begin == 0);
      GuardedTensor part(dtype, {length, 40});
      run_forward(piece, part, true);
      Numbers expected;
      for (int64_t k = 0; k < length * 40; ++k) expected.push_back(y.value(begin * 40 + k));
      expect_same(part, expected, "y");
      for (int64_t k = 0; k < states.count(); ++k) states.set(k, piece.states.value(k));
      begin += length;
    }
  }
}

TEST_F(ShortConvolution, BackwardAgreesWithFloat64Loops) {
  for (const Case& c : cases())
    for (const bool accumulate : {false, true}) {
      const fvlm_dtype gradient = accumulate ? f32 : c.dtype;
      SCOPED_TRACE(std::string(c.name) + (accumulate ? ", accumulate" : ""));
      Problem p(c);
      GuardedTensor d_x(c.dtype, {c.rows, c.width}, c.row_gap), d_weight(gradient, {c.width, c.taps}),
          d_bias(gradient, {c.width});
      d_x.fill(99), d_weight.fill(accumulate ? 0.5 : 99), d_bias.fill(accumulate ? 0.5 : 99);
      run_backward(p, d_x, &d_weight, c.with_bias ? &d_bias : nullptr, accumulate, gradient);
      Expected e = expected_of(p, false);
      for (double& each : e.d_weight) each += accumulate ? 0.5 : 0;
      for (double& each : e.d_bias) each += accumulate ? 0.5 : 0;
      const double sums = gradient.bits == 16 ? 6e-3 : 5e-5;
      expect_close(d_x, e.d_x, tolerance(c.dtype), "d_x");
      expect_close(d_weight, e.d_weight, sums, "d_weight");
      if (c.with_bias) expect_close(d_bias, e.d_bias, sums, "d_bias");
      for (const GuardedTensor* t : {&d_x, &d_weight, &d_bias}) t->expect_intact("an output");
    }
}

TEST_F(ShortConvolution, GradientsOfFrozenParametersAreNotRequired) {
  Problem p(Case{"", 72, {33, 1, 2}, 37, bf16, 4, 0, true});
  GuardedTensor d_x(bf16, {37, 72}), same_d_x(bf16, {37, 72}), d_weight(f32, {72, 4}), d_bias(f32, {72}),
      d_bias_alone(f32, {72});
  run_backward(p, d_x, &d_weight, &d_bias, false, f32);
  run_backward(p, same_d_x, nullptr, &d_bias_alone, false, f32);
  EXPECT_EQ(d_x.values(), same_d_x.values()) << "padding is 0 in both";
  EXPECT_EQ(d_bias.values(), d_bias_alone.values());
  same_d_x.fill(99);
  run_backward(p, same_d_x, nullptr, nullptr, false, f32);
  EXPECT_EQ(d_x.values(), same_d_x.values());
}

TEST_F(ShortConvolution, GradientSumsAreTheSameBitsInEveryRun) {
  Problem p(Case{"", 64, {2500, 1, 2499}, 5000, bf16, 4, 0, true});
  GuardedTensor d_x(bf16, {5000, 64}), d_weight(f32, {64, 4}), d_bias(f32, {64});
  run_backward(p, d_x, &d_weight, &d_bias, false, f32);
  const auto weight = d_weight.values(), bias = d_bias.values();
  for (int round = 0; round < 10; ++round) {
    run_backward(p, d_x, &d_weight, &d_bias, false, f32);
    EXPECT_EQ(d_weight.values(), weight);
    EXPECT_EQ(d_bias.values(), bias);
  }
}

void check_cuda(cudaError_t status) {
  if (status != cudaSuccess) throw std::runtime_error(cudaGetErrorString(status));
}

TEST_F(ShortConvolution, ReplaysReadTheSegmentsOfTheirTime) {
  Problem p(Case{"", 64, std::vector<int64_t>(24, 1), 24, bf16});
  GuardedTensor y(bf16, {24, 64});
  run_forward(p, y, true); // loads the kernel, which a capture may not
  const fvlm_kernels_query query = p.query(FVLM_WITH_STATES);
  const fvlm_convolution_forward f = forward_of(p, y, true);
  cudaStream_t stream = nullptr;
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t executable = nullptr;
  check_cuda(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  Call call(host_);
  call->stream = stream;
  call->flags |= FVLM_CAPTURING;
  check_cuda(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
  EXPECT_EQ((*plugin_)->short_convolution_forward(plugin_->instance(), call.get(), &query, &f), FVLM_OK);
  check_cuda(cudaStreamEndCapture(stream, &graph));
  check_cuda(cudaGraphInstantiate(&executable, graph, 0));
  std::size_t nodes = 0;
  check_cuda(cudaGraphGetNodes(graph, nullptr, &nodes));
  EXPECT_EQ(nodes, 1u);
  for (const int64_t length : {1, 2, 5, 24}) {
    SCOPED_TRACE("segments of " + std::to_string(length));
    p.c.lengths.assign(24, 0);
    for (int64_t i = 0; i < 24; ++i)
      p.c.lengths[static_cast<size_t>(i)] = std::clamp<int64_t>(23 - i * length, 0, length);
    int64_t bound = 0;
    for (int64_t i = 0; i < 24; ++i)
      p.cu_seqlens.set(i + 1, static_cast<double>(bound += p.c.lengths[static_cast<size_t>(i)]));
    const Expected e = expected_of(p, true);
    y.fill(99);
    check_cuda(cudaGraphLaunch(executable, stream));
    check_cuda(cudaStreamSynchronize(stream));
    expect_close(y, e.y, tolerance(bf16), "y");
    expect_same(p.states, e.states, "states");
  }
  check_cuda(cudaGraphExecDestroy(executable));
  check_cuda(cudaGraphDestroy(graph));
  check_cuda(cudaStreamDestroy(stream));
}

TEST_F(ShortConvolution, RefusesWhatItDoesNotTake) {
  const Problem p(Case{"", 64, {3}, 3, bf16});
  const auto reason = [&](auto change) {
    fvlm_kernels_query query = p.query(0);
    change(query);
    const fvlm_support support = support_of(*plugin_, query);
    return support.score > 0 ? std::string("accepted") : std::string(support.reason);
  };
  EXPECT_EQ(reason([](auto& query) { query.taps = 5; }), "5 taps are not supported: expected 1 to 4");
  EXPECT_EQ(reason([](auto& query) { query.dtype = f64; }), "dtype float64 is not supported");
  EXPECT_EQ(reason([](auto& query) { query.options = FVLM_WITH_BACKWARD | FVLM_WITH_STATES; }),
            "a backward through states is not supported");
  EXPECT_EQ(reason([](auto& query) { query.options = FVLM_WITH_GELU; }), "options 0x8 are not supported");
}

} // namespace
} // namespace fvlm::testing
