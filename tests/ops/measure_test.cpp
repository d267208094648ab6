// Selection by measured time: which calls are timed, what is selected, and candidates that fail.
#include "base/log.h"
#include "base/scratch_folder.h"
#include "ops/measure.h"
#include "ops/operations.h"
#include "tools.h"

#include <ATen/ops/ones.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/tensor.h>

#include <cstring>
#include <gmock/gmock.h>

using namespace fvlm;
using namespace fvlm::ops;
using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

namespace {

// The reference under another name, which counts its calls and fails on request.
struct Twin {
  static inline int attention_forward, attention_backward, rmsnorm;
  static inline bool fails;

  template <class Table>
  static const Table& reference(const char* kind) {
    return *static_cast<const Table*>(reference_entry(host_for("reference"))->table(kind));
  }

  static const void* table(const char* kind) {
    static const auto attention = [] {
      auto table = reference<fvlm_attention_v1>(FVLM_ATTENTION_KIND);
      table.forward = [](auto* instance, auto* call, auto* query, auto* arguments) {
        ++attention_forward;
        if (fails) return fvlm_fail(call->error, FVLM_ERROR_INTERNAL, "out of luck");
        return reference<fvlm_attention_v1>(FVLM_ATTENTION_KIND).forward(instance, call, query, arguments);
      };
      table.backward = [](auto* instance, auto* call, auto* query, auto* arguments) {
        ++attention_backward;
        return reference<fvlm_attention_v1>(FVLM_ATTENTION_KIND).backward(instance, call, query, arguments);
      };
      return table;
    }();
    static const auto kernels = [] {
      auto table = reference<fvlm_kernels_v1>(FVLM_KERNELS_KIND);
      table.rmsnorm_forward = [](auto* instance, auto* call, auto* query, auto* arguments) {
        ++rmsnorm;
        return reference<fvlm_kernels_v1>(FVLM_KERNELS_KIND).rmsnorm_forward(instance, call, query, arguments);
      };
      return table;
    }();
    if (std::strcmp(kind, FVLM_ATTENTION_KIND) == 0) return &attention;
    if (std::strcmp(kind, FVLM_LOSS_KIND) == 0) return &reference<fvlm_loss_v1>(kind);
    return std::strcmp(kind, FVLM_KERNELS_KIND) == 0 ? &kernels : nullptr;
  }

  static const fvlm_plugin* entry(const fvlm_host*) {
    static const fvlm_plugin plugin = {sizeof plugin, FVLM_ABI_MAJOR, FVLM_ABI_MINOR, "twin", "1", table};
    return &plugin;
  }
};

const BackendPreference measured = BackendPreference::of({"measure"});

struct Measured : testing::Test {
  Measured() {
    set_log_level(LogLevel::debug); // which tells the times
    setenv("FVLM_CACHE", cache.path().c_str(), 1);
    Twin::attention_forward = Twin::attention_backward = Twin::rmsnorm = 0;
    Twin::fails = false;
    registry.add_static(
        builtin_manifest("twin", "1", "a twin", {FVLM_ATTENTION_KIND, FVLM_LOSS_KIND, FVLM_KERNELS_KIND}, {"cpu"}),
        [] { return &Twin::entry; });
    registry.add_static(reference_manifest(), [] { return &reference_entry; });
  }

  ~Measured() override { set_log_level(LogLevel::info); }

  Operations operations(OperationsOptions options) { return Operations(registry, std::move(options)); }

  // The output of attention for the same rows by the selected plugin.
  static Value attend(Operations& ops, bool trains) {
    Tape tape;
    const Value qkv(random({6, 12}, 1, at::kFloat), trains);
    const Segments segments{at::tensor({0, 4, 6}, at::kInt), {}, 4};
    return ops.attention(tape, {qkv, 0, 1}, {qkv, 4, 1}, {qkv, 8, 1}, segments, segments, {4, true, {}});
  }

  static const CandidateAnswer& considered(const SelectionReport& report, const std::string& plugin) {
    for (const CandidateAnswer& one : report.considered)
      if (one.plugin == plugin) return one;
    throw std::runtime_error(plugin + " was not considered");
  }

  // A cache for this test only.
  ScratchFolder cache;
  Registry registry{RegistryOptions{}};
};

TEST_F(Measured, TakesTheFastestAndReportsTimes) {
  auto ops = operations({.attention = measured});
  testing::internal::CaptureStderr();
  attend(ops, true);
  const std::string log = testing::internal::GetCapturedStderr();
  ASSERT_EQ(ops.choices().size(), 1u);
  const SelectionReport& report = ops.choices()[0];
  const auto twin = considered(report, "twin").seconds, reference = considered(report, "reference").seconds;
  ASSERT_TRUE(twin && reference) << report.text();
  EXPECT_GT(*twin, 0);
  EXPECT_GT(*reference, 0);
  EXPECT_EQ(report.chosen, *twin <= *reference ? "twin" : "reference") << *twin << " and " << *reference;
  EXPECT_THAT(log, AllOf(HasSubstr("attention (6 x 6 rows, 2 segments of at most 4 x 4, 1 / 1 heads of 4, causal, "
                                   "with backward) measured"),
                         HasSubstr("milliseconds"), HasSubstr("twin"), HasSubstr("reference")));
}

TEST_F(Measured, TimesBackwardWhereItWillFollow) {
  auto ops = operations({.attention = measured});
  attend(ops, false);
  EXPECT_GT(Twin::attention_forward, 1);
  EXPECT_EQ(Twin::attention_backward, 0);
  attend(ops, true);
  EXPECT_GT(Twin::attention_backward, 1);
}

TEST_F(Measured, SecondStartReusesTimes) {
  auto first = operations({.attention = measured});
  attend(first, true);
  const SelectionReport before = first.choices().at(0);
  EXPECT_THAT(before.times(), AllOf(HasSubstr("now"), Not(HasSubstr("earlier"))));
  Twin::attention_forward = 0;

  auto second = operations({.attention = measured});
  testing::internal::CaptureStderr();
  attend(second, true);
  const std::string log = testing::internal::GetCapturedStderr();
  const SelectionReport after = second.choices().at(0);
  EXPECT_EQ(after.chosen, before.chosen);
  EXPECT_EQ(considered(after, "twin").seconds, considered(before, "twin").seconds);
  EXPECT_EQ(considered(after, "reference").seconds, considered(before, "reference").seconds);
  EXPECT_LE(Twin::attention_forward, 1) << "the call itself, where it is the twin's";
  EXPECT_THAT(log, AllOf(HasSubstr("earlier"), Not(HasSubstr("now"))));
}

TEST_F(Measured, DeterministicCallsAreMeasuredSeparately) {
  auto plain = operations({.attention = measured});
  attend(plain, false);
  Twin::attention_forward = 0;
  auto deterministic = operations({.deterministic = true, .attention = measured});
  attend(deterministic, false);
  EXPECT_GT(Twin::attention_forward, 1);
}

TEST_F(Measured, OnlyWherePreferredAndOncePerShape) {
  auto plain = operations({});
  attend(plain, false);
  EXPECT_EQ(Twin::attention_forward, 1) << "the call itself";
  EXPECT_FALSE(plain.choices().at(0).considered.at(0).seconds);
  auto ops = operations({.attention = measured});
  attend(ops, false);
  const int after_one = Twin::attention_forward;
  attend(ops, false);
  EXPECT_LE(Twin::attention_forward, after_one + 1);
  EXPECT_EQ(ops.choices().size(), 1u);
}

TEST_F(Measured, RefusesAFailingCandidateWithItsReason) {
  Twin::fails = true;
  auto ops = operations({.attention = measured});
  const Value y = attend(ops, true);
  const SelectionReport& report = ops.choices().at(0);
  EXPECT_EQ(report.chosen, "reference");
  EXPECT_FALSE(considered(report, "twin").fits);
  EXPECT_THAT(considered(report, "twin").reason, AllOf(HasSubstr("failed when it was measured"),
                                                       HasSubstr("attention forward"), HasSubstr("out of luck")));
  Twin::fails = false;
  auto other = operations({.attention = {{"twin"}}});
  expect_same_bits(y.data, attend(other, true).data, "attention");
}

TEST_F(Measured, LossOnItsOwnShapes) {
  auto ops = operations({.loss = measured});
  Parameter head;
  head.value = random({5, 3}, 1, at::kFloat);
  testing::internal::CaptureStderr();
  Tape tape;
  ops.cross_entropy(tape, Value(random({4, 3}, 2, at::kFloat), true), Weight(head),
                    at::tensor({1, -1, 4, 0}, at::kLong));
  EXPECT_THAT(testing::internal::GetCapturedStderr(),
              HasSubstr("loss (4 rows of 3, vocabulary of 5, with backward) measured"));
  EXPECT_TRUE(considered(ops.choices().at(0), "twin").seconds);
  EXPECT_TRUE(considered(ops.choices().at(0), "reference").seconds);
}

TEST_F(Measured, LeavesTheRandomStateUnchanged) {
  at::manual_seed(3);
  const at::Tensor expected = at::randn({4});
  at::manual_seed(3);
  auto ops = operations({.attention = measured, .kernels = measured});
  attend(ops, true);
  expect_same_bits(at::randn({4}), expected, "the next random numbers");
}

// Each operation, in three types; guard zones detect tensors of a wrong size.
TEST_F(Measured, EverySmallOperation) {
  const DebugMode debug;
  registry.load("reference");
  const auto candidate = registry.candidates<fvlm_kernels_v1>().back();
  for (const auto dtype : {at::kFloat, at::kDouble, at::kBFloat16})
    for (int32_t op = FVLM_OP_RMSNORM; op <= FVLM_OP_FOLD_ROW_SCALE; ++op)
      for (uint32_t options = 0; options < 16; ++options) {
        constexpr uint32_t not_together = FVLM_WITH_GELU | FVLM_WITH_RESIDUAL;
        if (op == FVLM_OP_LINEAR && (options & not_together) == not_together) continue;
        fvlm_kernels_query query{};
        query.op = op;
        query.dtype = abi_dtype(dtype);
        query.gradient_dtype = abi_dtype(dtype == at::kDouble ? at::kDouble : at::kFloat);
        query.options = options;
        query.rows = 5;
        query.width = 6;
        query.inner = 3;
        query.heads = 1;
        query.head_dim = query.rotary_dim = 6;
        query.epsilon = 1e-5f;
        query.rope_theta = 100;
        EXPECT_GT(measure(candidate, query, at::kCPU), 0) << operation_name(op) << " with options " << options;
      }
}

// As in generation: one query with a long KV cache. Then rotary embedding, and buffers without segments.
TEST_F(Measured, AttentionOfAnyShape) {
  const DebugMode debug;
  const auto candidate = registry.candidates<fvlm_attention_v1>().back();
  fvlm_attention_query query{};
  query.dtype = abi_dtype(at::kFloat);
  query.heads_q = 2;
  query.heads_kv = 1;
  query.head_dim = 4;
  query.scale = 0.5f;
  query.rope_theta = 100;
  for (const auto& [of_q, of_kv, longest_q, longest_kv, segments] :
       {std::array{1, 300, 1, 300, 1}, {7, 7 * 17, 1, 17, 7}, {64, 64, 40, 40, 9}, {0, 0, 0, 0, 1}, {5, 5, 5, 5, 50}})
    for (const int32_t flags : {0, 1, 2, 3}) {
      query.tokens_q = of_q;
      query.tokens_kv = of_kv;
      query.max_seqlen_q = longest_q;
      query.max_seqlen_kv = longest_kv;
      query.segments = segments;
      query.needs_backward = flags & 1;
      query.rotary_dim = flags & 2 ? 4 : 0;
      EXPECT_GT(measure(candidate, query, at::kCPU), 0) << KindOf<fvlm_attention_v1>::shape(query);
    }
}

TEST_F(Measured, OneOperationMayHaveItsOwnPreference) {
  auto ops = operations({.kernels = {{"reference"}}, .operations = {{"rmsnorm", {{"twin"}}}}});
  Parameter weight;
  weight.value = at::ones({4});
  Tape none(Tape::Mode::forward_only);
  ops.rmsnorm(none, Value(at::ones({2, 4})), {}, Weight(weight), 1e-5);
  ops.swiglu(none, Value(at::ones({2, 4})));
  EXPECT_EQ(Twin::rmsnorm, 1);
  ASSERT_EQ(ops.choices().size(), 2u);
  EXPECT_EQ(ops.choices()[0].chosen, "twin");
  EXPECT_EQ(ops.choices()[1].chosen, "reference");
}

} // namespace
