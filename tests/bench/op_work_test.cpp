// The minimal work of operations, computed by hand.
#include "bench/op_work.h"

#include <gtest/gtest.h>

namespace fvlm::bench {
namespace {

constexpr fvlm_dtype bf16{FVLM_BFLOAT, 16, 1}, fp32{FVLM_FLOAT, 32, 1};

void expect_work(const MinimalWork& work, double bytes, double flops, const char* what) {
  EXPECT_EQ(work.bytes, bytes) << what;
  EXPECT_EQ(work.flops, flops) << what;
}

fvlm_kernels_query rows(int32_t op, uint32_t options) {
  fvlm_kernels_query query{};
  query.op = op;
  query.dtype = bf16;
  query.gradient_dtype = fp32;
  query.options = options;
  query.rows = 10;
  query.width = 6;
  query.inner = 4;
  return query;
}

TEST(MinimalWork, CountsLinear) {
  const double x = 10 * 4 * 2, y = 10 * 6 * 2, weight = 6 * 4, product = 2 * 10 * 6 * 4;
  const Passes forward_alone = minimal_work(rows(FVLM_OP_LINEAR, 0));
  expect_work(forward_alone.forward, x + 2 * weight + y, product, "forward alone");
  expect_work(forward_alone.backward, 0, 0, "no backward");
  const Passes both = minimal_work(rows(FVLM_OP_LINEAR, FVLM_WITH_BACKWARD | FVLM_WITH_GELU));
  expect_work(both.forward, x + 2 * weight + 2 * y, product, "with what is before gelu");
  const Passes gated = minimal_work(rows(FVLM_OP_LINEAR, FVLM_WITH_BACKWARD | FVLM_WITH_SWIGLU));
  expect_work(gated.forward, x + 4 * weight + 3 * y, 2 * product, "gate, up and SwiGLU of them");
  // d_y and the weight give d_x; d_y and x give the weight's gradient in float32.
  expect_work(both.backward, y + 2 * weight + x + x + 4 * weight, 2 * product, "backward");
}

TEST(MinimalWork, CountsSmallOperations) {
  const double rows_once = 10 * 6 * 2;
  const auto times = [&](int32_t op, uint32_t options) {
    const Passes passes = minimal_work(rows(op, options | FVLM_WITH_BACKWARD));
    EXPECT_EQ(passes.forward.flops + passes.backward.flops, 0) << op;
    return std::pair(passes.forward.bytes / rows_once, passes.backward.bytes / rows_once);
  };
  EXPECT_EQ(times(FVLM_OP_RMSNORM, 0), std::pair(2.0, 3.0));
  EXPECT_EQ(times(FVLM_OP_RMSNORM, FVLM_WITH_RESIDUAL), std::pair(4.0, 3.0));
  EXPECT_EQ(times(FVLM_OP_LAYERNORM, 0), std::pair(2.0, 3.0));
  EXPECT_EQ(times(FVLM_OP_ROPE, 0), std::pair(2.0, 2.0));
  EXPECT_EQ(times(FVLM_OP_SWIGLU, 0), std::pair(3.0, 5.0));
  EXPECT_EQ(times(FVLM_OP_BIAS_GELU, 0), std::pair(2.0, 3.0));
  EXPECT_EQ(times(FVLM_OP_LAYERSCALE_RESIDUAL, 0), std::pair(3.0, 3.0));
}

TEST(MinimalWork, CountsScaledLinears) {
  auto query = rows(FVLM_OP_FOLD_ROW_SCALE, FVLM_WITH_BACKWARD);
  const auto weights = static_cast<double>(query.rows * query.width * query.inner),
             biases = static_cast<double>(query.rows * query.width);
  const Passes passes = minimal_work(query);
  expect_work(passes.forward, 2 * 2 * weights + 3 * 2 * biases, 0, "forward");
  // What came in float32, the weight, and its gradient.
  expect_work(passes.backward, (4 + 2 + 4) * weights, 0, "backward");
}

TEST(MinimalWork, CountsAttendingPairsOfAttention) {
  fvlm_attention_query query{};
  query.dtype = bf16;
  query.heads_q = 4;
  query.heads_kv = 2;
  query.head_dim = 8;
  query.segments = 3;
  query.max_seqlen_q = query.max_seqlen_kv = 5;
  query.tokens_q = query.tokens_kv = 15;
  query.needs_backward = 1;
  const double q = 15 * 4 * 8 * 2, kv = 15 * 2 * 8 * 2, product = 2.0 * 3 * 25 * 4 * 8;
  Passes passes = minimal_work(query);
  expect_work(passes.forward, 2 * q + 2 * kv, 2 * product, "forward");
  expect_work(passes.backward, 4 * q + 4 * kv, 5 * product, "backward");
  query.causal = 1;
  EXPECT_EQ(minimal_work(query).forward.flops, 2 * product * 15 / 25) << "of 25 pairs 15";
  query.max_seqlen_q = 1; // only the last query, which attends to all keys
  query.tokens_q = 3;
  EXPECT_EQ(minimal_work(query).forward.flops, 2 * product * 5 / 25);
  query.needs_backward = 0;
  expect_work(minimal_work(query).backward, 0, 0, "no backward");
}

TEST(MinimalWork, CountsLossAndOptimizer) {
  fvlm_loss_query loss{};
  loss.dtype = bf16;
  loss.gradient_dtype = fp32;
  loss.tokens = 10;
  loss.width = 4;
  loss.vocab = 100;
  loss.needs_d_hidden = 1;
  const double hidden = 10 * 4 * 2, weight = 100 * 4 * 2, product = 2 * 10 * 4 * 100;
  expect_work(minimal_work(loss).forward, hidden + weight, product, "loss");
  expect_work(minimal_work(loss).backward, 2 * hidden + weight, product, "d_hidden");
  loss.needs_d_weight = 1;
  expect_work(minimal_work(loss).backward, 2 * hidden + 3 * weight, 2 * product, "both gradients");

  fvlm_optimizer_query optimizer{};
  optimizer.gradient_dtype = optimizer.state_dtype = fp32;
  optimizer.parameter_dtype = bf16;
  optimizer.elements = 7;
  expect_work(minimal_work(optimizer).forward, 7 * (8 + 8 + 8 + 4 + 2), 0, "AdamW with a copy");
  optimizer.parameter_dtype = fp32;
  optimizer.state_dtype = bf16;
  expect_work(minimal_work(optimizer).forward, 7 * (8 + 4 + 8 + 4), 0, "AdamW without");
}

TEST(MinimalWork, CountsTensorTrafficAndProductsOfTheCall) {
  const auto linear = rows(FVLM_OP_LINEAR, FVLM_WITH_BACKWARD);
  for (const char* operation : {"linear forward", "linear input gradient", "linear weight gradient"})
    expect_work(minimal_work(operation, linear, 77), 77, 2 * 10 * 6 * 4, operation);
  expect_work(minimal_work("swiglu forward", rows(FVLM_OP_SWIGLU, 0), 77), 77, 0, "no matrix is multiplied");

  fvlm_attention_query attention{};
  attention.head_dim = attention.heads_q = attention.heads_kv = 1;
  attention.segments = 1;
  attention.max_seqlen_q = attention.max_seqlen_kv = 5;
  attention.tokens_q = attention.tokens_kv = 5;
  expect_work(minimal_work("attention forward", attention, 7), 7, 2 * 50, "attention");
  expect_work(minimal_work("attention backward", attention, 7), 7, 5 * 50, "its backward");
  attention.queries_alone = 1;
  expect_work(minimal_work("attention backward", attention, 7), 7, 3 * 50, "without keys and values");

  fvlm_loss_query loss{};
  loss.tokens = 10;
  loss.width = 4;
  loss.vocab = 100;
  loss.needs_d_hidden = loss.needs_d_weight = 1;
  const double product = 2 * 10 * 4 * 100;
  expect_work(minimal_work("loss forward", loss, 7), 7, product, "loss");
  expect_work(minimal_work("loss backward", loss, 7), 7, 2 * product, "its backward");
  expect_work(minimal_work("loss fused", loss, 7), 7, 3 * product, "both at once");

  fvlm_optimizer_query optimizer{};
  optimizer.gradient_dtype = optimizer.state_dtype = optimizer.parameter_dtype = fp32;
  optimizer.elements = 7;
  expect_work(minimal_work("optimizer step", optimizer, 1), minimal_work(optimizer).forward.bytes, 0,
              "masters and moments are read and written");
}

TEST(MinimalWork, DescribesShape) {
  EXPECT_EQ(shape_of(rows(FVLM_OP_LINEAR, FVLM_WITH_BIAS)), "10 rows of 6 from 4, with bias");
  fvlm_optimizer_query optimizer{};
  optimizer.elements = 7;
  EXPECT_EQ(shape_of(optimizer), "7 parameters");
}

TEST(MinimalWork, TakesTheSlowerOfBandwidthAndCompute) {
  const MinimalWork work{100, 30};
  EXPECT_EQ(work.seconds(10, 30), 10);
  EXPECT_EQ(work.seconds(100, 3), 10);
}

} // namespace
} // namespace fvlm::bench
