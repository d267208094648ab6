// cpp_wrapper_test.cpp: the C++ wrapper fills in what an author omits, and no exception crosses the boundary.
#include <fvlm/fvlm.hpp>

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>
#include <vector>

namespace sdk = fvlm::sdk;

namespace {

fvlm_host make_host() {
  fvlm_host host{};
  host.struct_size = sizeof host;
  host.abi_major = FVLM_ABI_MAJOR;
  host.parallel_for = [](const fvlm_host*, std::int64_t count, std::int64_t,
                         void (*task)(void*, std::int64_t, std::int64_t), void* context) {
    for (std::int64_t i = 0; i < count; ++i) task(context, i, i + 1);
  };
  return host;
}

struct Matrix {
  Matrix(std::int64_t rows, std::int64_t cols, std::int64_t row_stride)
      : values(static_cast<std::size_t>(rows * row_stride), 2.F), shape{rows, cols}, strides{row_stride, 1} {
    tensor = {values.data(), {FVLM_CPU, 0}, 2, sdk::float32, shape, strides, 0};
  }
  Matrix(const Matrix&) = delete;
  Matrix& operator=(const Matrix&) = delete;
  std::vector<float> values;
  std::int64_t shape[2], strides[2];
  fvlm_tensor tensor;
};

class Comfort : public testing::Test {
 protected:
  void SetUp() override {
    plugin = fvlm_plugin_entry_v1(&host);
    ASSERT_NE(plugin, nullptr);
    kernels = static_cast<const fvlm_kernels_v1*>(plugin->table(FVLM_KERNELS_KIND));
    ASSERT_NE(kernels, nullptr);
    query.struct_size = sizeof query;
    query.op = FVLM_OP_SWIGLU;
    query.dtype = sdk::float32;
    query.rows = 3;
    query.width = 4;
    call.struct_size = sizeof call;
    call.host = &host;
    call.error = &error;
    call.workspace = space;
    call.workspace_size = sizeof space;
    ASSERT_EQ(create(0), FVLM_OK) << text;
  }
  void TearDown() override { kernels->base.destroy(instance); }

  fvlm_status create(int device) {
    const fvlm_instance_config config{sizeof config, {FVLM_CPU, device}, &host};
    return kernels->base.create(&config, &instance, &error);
  }
  std::string ask() {
    fvlm_support support{};
    support.struct_size = sizeof support;
    kernels->supports(&query, &support);
    return std::to_string(support.score) + " " + support.reason;
  }

  // What an engine is told whose struct has so many bytes.
  fvlm_requirements required(size_t struct_size) {
    fvlm_requirements requirements{};
    requirements.struct_size = static_cast<uint32_t>(struct_size);
    EXPECT_EQ(kernels->requirements(instance, &query, &requirements, &error), FVLM_OK) << text;
    return requirements;
  }

  fvlm_host host = make_host();
  char text[256] = "";
  fvlm_error error{sizeof error, sizeof text, text};
  const fvlm_plugin* plugin = nullptr;
  const fvlm_kernels_v1* kernels = nullptr;
  fvlm_instance* instance = nullptr;
  fvlm_kernels_query query{};
  fvlm_call call{};
  alignas(256) char space[512] = {};
};

TEST_F(Comfort, EntryReturnsOnePointerForHostsOfItsMajorOnly) {
  EXPECT_EQ(fvlm_plugin_entry_v1(&host), plugin);
  EXPECT_STREQ(plugin->name, "comfort");
  EXPECT_STREQ(plugin->version, "1.2.3");
  fvlm_host other = host;
  other.abi_major = FVLM_ABI_MAJOR + 1;
  EXPECT_EQ(fvlm_plugin_entry_v1(&other), nullptr);
  other = host;
  other.struct_size = 0;
  EXPECT_EQ(fvlm_plugin_entry_v1(&other), nullptr);
  EXPECT_EQ(fvlm_plugin_entry_v1(nullptr), nullptr);
}

TEST_F(Comfort, TablesAreExactlyTheNamedClasses) {
  EXPECT_EQ(plugin->table(FVLM_KERNELS_KIND), kernels);
  const auto* momentum = static_cast<const fvlm_optimizer_v1*>(plugin->table(FVLM_OPTIMIZER_KIND("momentum")));
  const auto* nesterov = static_cast<const fvlm_optimizer_v1*>(plugin->table(FVLM_OPTIMIZER_KIND("nesterov")));
  ASSERT_NE(momentum, nullptr);
  ASSERT_NE(nesterov, nullptr);
  EXPECT_STREQ(momentum->algorithm, "momentum");
  EXPECT_STREQ(nesterov->algorithm, "nesterov");
  for (const char* other :
       {"fvlm.optimizer/1", "fvlm.optimizer/1:", "fvlm.optimizer/1:momentum2", "fvlm.kernels/2", ""}) {
    EXPECT_EQ(plugin->table(other), nullptr) << other;
  }
  EXPECT_EQ(plugin->table(FVLM_ATTENTION_KIND), nullptr);
  EXPECT_EQ(plugin->table(nullptr), nullptr);
}

TEST_F(Comfort, OperationsWithoutAMemberFunctionAreNullAndRefused) {
  EXPECT_NE(kernels->swiglu_forward, nullptr);
  EXPECT_NE(kernels->swiglu_backward, nullptr);
  EXPECT_EQ(kernels->rope, nullptr);
  EXPECT_EQ(kernels->linear_weight_gradient, nullptr);
  EXPECT_EQ(ask(), "100 plain loops");
  query.op = FVLM_OP_ROPE;
  EXPECT_EQ(ask(), "0 this operation is not offered");
}

TEST_F(Comfort, SupportsAnswersWithTextEvenWhenItThrows) {
  query.dtype = sdk::float64;
  EXPECT_EQ(ask(), "0 dtype float64 not supported");
  query.width = 13;
  EXPECT_EQ(ask(), "0 13 is unlucky");
}

TEST_F(Comfort, RefusesStructSizesOfZeroAndTooSmall) {
  Matrix x(3, 4, 4);
  fvlm_swiglu_forward arguments{sizeof arguments, &x.tensor, &x.tensor, &x.tensor};
  for (const std::uint32_t wrong : {0U, 8U, static_cast<std::uint32_t>(sizeof arguments - 1)}) {
    arguments.struct_size = wrong;
    EXPECT_EQ(kernels->swiglu_forward(instance, &call, &query, &arguments), FVLM_ERROR_ARGUMENT);
    EXPECT_EQ(std::string(text), "arguments: expected a struct_size of at least 32 but got " + std::to_string(wrong));
  }
  arguments.struct_size = sizeof arguments + 64; // a newer engine's
  EXPECT_EQ(kernels->swiglu_forward(instance, &call, &query, &arguments), FVLM_OK) << text;
  query.struct_size = 0;
  EXPECT_EQ(kernels->swiglu_forward(instance, &call, &query, &arguments), FVLM_ERROR_ARGUMENT);
  EXPECT_EQ(ask().substr(0, 40), "0 query: expected a struct_size of at le");
  query.struct_size = sizeof query;
  call.struct_size = 4;
  text[0] = 0;
  EXPECT_EQ(kernels->swiglu_forward(instance, &call, &query, &arguments), FVLM_ERROR_ARGUMENT);
  EXPECT_STREQ(text, "") << "the sink of a call that is too small was read";
  EXPECT_EQ(kernels->swiglu_forward(nullptr, &call, &query, &arguments), FVLM_ERROR_ARGUMENT);
}

TEST_F(Comfort, ExceptionsBecomeStatuses) {
  fvlm_swiglu_backward backward{};
  backward.struct_size = sizeof backward;
  EXPECT_EQ(kernels->swiglu_backward(instance, &call, &query, &backward), FVLM_ERROR_INTERNAL);
  EXPECT_STREQ(text, "an exception of an unknown type");
  fvlm_instance* const kept = instance;
  EXPECT_EQ(create(7), FVLM_ERROR_MEMORY);
  EXPECT_STREQ(text, "out of host memory");
  EXPECT_EQ(instance, nullptr);
  EXPECT_EQ(create(8), FVLM_ERROR_DEVICE);
  EXPECT_STREQ(text, "no device 8");
  EXPECT_EQ(create(9), FVLM_ERROR_INTERNAL);
  EXPECT_STREQ(text, "9 is odd");
  instance = kept;

  Matrix x(101, 4, 4);
  query.rows = 101;
  const fvlm_swiglu_forward arguments{sizeof arguments, &x.tensor, &x.tensor, &x.tensor};
  alignas(256) char large[1024];
  call.workspace = large;
  call.workspace_size = sizeof large;
  EXPECT_EQ(kernels->swiglu_forward(instance, &call, &query, &arguments), FVLM_ERROR_INTERNAL);
  EXPECT_STREQ(text, "row 100") << "what a piece of parallel_for throws arrives";
}

TEST_F(Comfort, ViewsFollowStridesAndRefuseOtherTypes) {
  Matrix x(3, 4, 7), y(3, 4, 5);
  fvlm_swiglu_forward arguments{sizeof arguments, &x.tensor, &x.tensor, &y.tensor};
  EXPECT_EQ(kernels->swiglu_forward(instance, &call, &query, &arguments), FVLM_OK) << text;
  EXPECT_EQ(y.values[10 + 3], 4.F);
  EXPECT_EQ(y.values[10 + 4], 2.F) << "the gap between rows was written";
  query.dtype = sdk::bfloat16;
  EXPECT_EQ(kernels->swiglu_forward(instance, &call, &query, &arguments), FVLM_ERROR_ARGUMENT);
  EXPECT_STREQ(text, "gate: expected bfloat16 of rank 2 but got float32 of rank 2");
  query.dtype = sdk::float32;
  arguments.up = nullptr;
  EXPECT_EQ(kernels->swiglu_forward(instance, &call, &query, &arguments), FVLM_ERROR_ARGUMENT);
  EXPECT_STREQ(text, "up is NULL");

  EXPECT_FALSE((sdk::View<float, 2>(&x.tensor).contiguous()));
  EXPECT_TRUE((sdk::View<float, 2>(&x.tensor).rows_contiguous()));
  EXPECT_EQ((sdk::View<float, 2>(&x.tensor).row(2)), x.values.data() + 14);
}

TEST_F(Comfort, WorkspaceIsCountedAndCarvedByOneFunction) {
  const fvlm_requirements requirements = required(sizeof(fvlm_requirements));
  EXPECT_EQ(requirements.forward_workspace, 512U);
  EXPECT_EQ(requirements.saved_count, 1U);
  EXPECT_EQ(requirements.saved[0].ndim, 2);
  EXPECT_EQ(requirements.saved[0].shape[1], 4);
  Matrix x(3, 4, 4);
  const fvlm_swiglu_forward arguments{sizeof arguments, &x.tensor, &x.tensor, &x.tensor};
  call.workspace_size = 511;
  EXPECT_EQ(kernels->swiglu_forward(instance, &call, &query, &arguments), FVLM_ERROR_WORKSPACE);
  EXPECT_STREQ(text, "expected a workspace of at least 512 bytes but got 511");
}

TEST_F(Comfort, AnOlderEngineGivesAllCallsTheDeterministicWorkspace) {
  fvlm_requirements requirements = required(sizeof(fvlm_requirements));
  EXPECT_EQ(requirements.backward_workspace, 0U);
  EXPECT_EQ(requirements.deterministic_workspace, 640U);
  requirements = required(offsetof(fvlm_requirements, deterministic_workspace));
  EXPECT_EQ(requirements.backward_workspace, 640U);
  EXPECT_EQ(requirements.deterministic_workspace, 0U);
}

TEST_F(Comfort, OptimizerDeclaresItsStatesAndHyperparameters) {
  const auto* table = static_cast<const fvlm_optimizer_v1*>(plugin->table(FVLM_OPTIMIZER_KIND("momentum")));
  EXPECT_STREQ(table->algorithm, "momentum");
  EXPECT_EQ(table->hyperparameter_count, 2);
  EXPECT_STREQ(table->hyperparameters[1].name, "momentum");
  fvlm_optimizer_query requested{};
  requested.struct_size = sizeof requested;
  requested.state_dtype = sdk::bfloat16;
  fvlm_optimizer_state states[FVLM_MAX_STATES];
  ASSERT_EQ(table->states(&requested, states), 1);
  EXPECT_STREQ(states[0].name, "m");
  EXPECT_TRUE(states[0].dtype == sdk::bfloat16);
  requested.elements = 13;
  EXPECT_EQ(table->states(&requested, states), -1) << "states() that throws is an optimizer without states";
}

TEST_F(Comfort, ErrorSinkOfCapacity0AndNoSinkAreLeftAlone) {
  fvlm_error none{sizeof none, 0, nullptr};
  for (fvlm_error* sink : {static_cast<fvlm_error*>(nullptr), &none}) {
    call.error = sink;
    const fvlm_swiglu_forward arguments{sizeof arguments, nullptr, nullptr, nullptr};
    EXPECT_EQ(kernels->swiglu_forward(instance, &call, &query, &arguments), FVLM_ERROR_ARGUMENT);
  }
}

// The definition of bfloat16 rounding, in doubles: the neighbour that is nearer, of two as near the even one.
TEST(Number, Bfloat16RoundsToNearestEvenAndKeepsNan) {
  for (std::uint32_t high = 0; high < 0x10000; ++high) {
    sdk::BFloat16 exact{};
    exact.bits = static_cast<std::uint16_t>(high);
    const float value = exact;
    if (std::isnan(value)) {
      EXPECT_TRUE(std::isnan(static_cast<float>(sdk::BFloat16(value)))) << high;
      continue;
    }
    ASSERT_EQ(sdk::BFloat16(value).bits, high);
    if (!std::isfinite(value)) continue;
    const auto pattern = (high << 16) | 0x8000U;
    const float half_way = sdk::bit_cast<float>(pattern);
    EXPECT_EQ(sdk::BFloat16(half_way).bits, (high + 1) & ~1U) << value;
    EXPECT_EQ(sdk::BFloat16(sdk::bit_cast<float>(pattern - 1)).bits, high) << value;
    EXPECT_EQ(sdk::BFloat16(sdk::bit_cast<float>(pattern + 1)).bits, high + 1) << value;
  }
}

double half_by_definition(std::uint32_t bits) {
  const double sign = (bits & 0x8000U) ? -1 : 1;
  const int exponent = static_cast<int>((bits >> 10) & 31U);
  const double fraction = (bits & 1023U) / 1024.0;
  if (exponent == 31) {
    return fraction == 0 ? sign * std::numeric_limits<double>::infinity() : std::numeric_limits<double>::quiet_NaN();
  }
  return exponent == 0 ? sign * std::ldexp(fraction, -14) : sign * std::ldexp(1 + fraction, exponent - 15);
}

TEST(Number, HalfIsExactBothWaysAndRoundsToNearestEven) {
  for (std::uint32_t bits = 0; bits < 0x10000; ++bits) {
    sdk::Half half{};
    half.bits = static_cast<std::uint16_t>(bits);
    const double expected = half_by_definition(bits);
    const float got = half;
    if (std::isnan(expected)) {
      EXPECT_TRUE(std::isnan(got)) << bits;
      EXPECT_TRUE(std::isnan(static_cast<float>(sdk::Half(got)))) << bits;
      continue;
    }
    ASSERT_EQ(static_cast<double>(got), expected) << bits;
    ASSERT_EQ(sdk::Half(got).bits, bits);
    const bool last_finite = (bits & 0x7fffU) == 0x7bffU;
    if ((bits & 0x7fffU) >= 0x7bffU && !last_finite) continue;
    const double above = last_finite ? std::copysign(65536.0, expected) : half_by_definition(bits + 1);
    const auto half_way = static_cast<float>((expected + above) / 2);
    EXPECT_EQ(sdk::Half(half_way).bits, (bits + 1) & ~1U) << expected;
    EXPECT_EQ(sdk::Half(std::nextafter(half_way, 0.F)).bits, bits) << expected;
    EXPECT_EQ(sdk::Half(std::nextafter(half_way, static_cast<float>(above) * 2)).bits, bits + 1) << expected;
  }
  EXPECT_EQ(sdk::Half(1e30F).bits, 0x7c00U);
  EXPECT_EQ(sdk::Half(-1e-30F).bits, 0x8000U);
}

} // namespace
