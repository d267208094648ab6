// attention_test.cpp: the plugin against plain loops in float64, at the edge shapes of the contract.
#include "common/testing/guarded.h"

#include <algorithm>
#include <limits>

namespace fvlm::testing {
namespace {

using Attention = Plugin<fvlm_attention_v1>;

struct Shape {
  const char* name;
  std::vector<int> lengths_q, lengths_kv; // of the segments
  int heads_q, heads_kv, head_dim;
  bool causal;
  int padding_q = 0, padding_kv = 0;
  fvlm_dtype dtype = f32;
  int row_gap = 0;
};

// q, k, v, d_out -> out, d_q, d_k, d_v
struct Expected {
  std::vector<double> out, d_q, d_k, d_v;
};

Expected reference(const Shape& shape, double scale, const GuardedTensor& q_tensor, const GuardedTensor& k_tensor,
                   const GuardedTensor& v_tensor, const GuardedTensor& d_out_tensor) {
  const auto q = q_tensor.values(), k = k_tensor.values(), v = v_tensor.values(), d_out = d_out_tensor.values();
  const int dim = shape.head_dim, group = shape.heads_q / shape.heads_kv;
  Expected e;
  e.out.assign(q.size(), 0);
  e.d_q = e.out;
  e.d_k.assign(k.size(), 0);
  e.d_v = e.d_k;
  int64_t q_begin = 0, kv_begin = 0;
  for (size_t s = 0; s < shape.lengths_q.size(); ++s) {
    const int lq = shape.lengths_q[s], lk = shape.lengths_kv[s];
    for (int h = 0; h < shape.heads_q; ++h)
      for (int i = 0; i < lq; ++i) {
        const int seen = shape.causal ? std::clamp(i + 1 + lk - lq, 0, lk) : lk;
        const int64_t row = ((q_begin + i) * shape.heads_q + h) * dim;
        const auto key = [&](int j) { return ((kv_begin + j) * shape.heads_kv + h / group) * dim; };
        std::vector<double> p(static_cast<size_t>(seen));
        double largest = -1e300, total = 0;
        for (int j = 0; j < seen; ++j) {
          double dot = 0;
          for (int d = 0; d < dim; ++d)
            dot += static_cast<double>(q[static_cast<size_t>(row + d)]) * k[static_cast<size_t>(key(j) + d)];
          p[static_cast<size_t>(j)] = dot * scale;
          largest = std::max(largest, dot * scale);
        }
        for (double& x : p) total += x = std::exp(x - largest);
        for (double& x : p) x /= total;
        double delta = 0;
        for (int d = 0; d < dim; ++d) {
          double sum = 0;
          for (int j = 0; j < seen; ++j) sum += p[static_cast<size_t>(j)] * v[static_cast<size_t>(key(j) + d)];
          e.out[static_cast<size_t>(row + d)] = sum;
          delta += sum * d_out[static_cast<size_t>(row + d)];
        }
        for (int j = 0; j < seen; ++j) {
          double d_p = 0;
          for (int d = 0; d < dim; ++d)
            d_p += static_cast<double>(d_out[static_cast<size_t>(row + d)]) * v[static_cast<size_t>(key(j) + d)];
          const double d_s = p[static_cast<size_t>(j)] * (d_p - delta) * scale;
          for (int d = 0; d < dim; ++d) {
            e.d_q[static_cast<size_t>(row + d)] += d_s * k[static_cast<size_t>(key(j) + d)];
            e.d_k[static_cast<size_t>(key(j) + d)] += d_s * q[static_cast<size_t>(row + d)];
            e.d_v[static_cast<size_t>(key(j) + d)] += p[static_cast<size_t>(j)] * d_out[static_cast<size_t>(row + d)];
          }
        }
      }
    q_begin += lq;
    kv_begin += lk;
  }
  return e;
}

struct Results {
  GuardedTensor out, d_q, d_k, d_v;
};

GuardedTensor offsets(const std::vector<int>& lengths) {
  GuardedTensor cu(i32, {static_cast<int64_t>(lengths.size()) + 1});
  int64_t total = 0;
  for (size_t s = 0; s <= lengths.size(); ++s) {
    cu.set(static_cast<int64_t>(s), static_cast<double>(total));
    if (s < lengths.size()) total += lengths[s];
  }
  return cu;
}

int sum_of(const std::vector<int>& v) {
  int total = 0;
  for (const int x : v) total += x;
  return total;
}

fvlm_attention_query query_of(const Shape& shape, float scale) {
  fvlm_attention_query query{};
  query.struct_size = sizeof query;
  query.causal = shape.causal;
  query.device = {FVLM_CPU, 0};
  query.dtype = shape.dtype;
  query.heads_q = shape.heads_q;
  query.heads_kv = shape.heads_kv;
  query.head_dim = shape.head_dim;
  query.max_seqlen_q = *std::max_element(shape.lengths_q.begin(), shape.lengths_q.end());
  query.max_seqlen_kv = *std::max_element(shape.lengths_kv.begin(), shape.lengths_kv.end());
  query.tokens_q = sum_of(shape.lengths_q) + shape.padding_q;
  query.tokens_kv = sum_of(shape.lengths_kv) + shape.padding_kv;
  query.segments = static_cast<int64_t>(shape.lengths_q.size());
  query.scale = scale;
  query.needs_backward = 1;
  return query;
}

Results run(const Shape& shape, int threads, float scale, GuardedTensor& q, GuardedTensor& k, GuardedTensor& v,
            GuardedTensor& d_out) {
  const Host host(threads);
  const Attention plugin(FVLM_TEST_LIBRARY, FVLM_ATTENTION_KIND, host);
  const fvlm_attention_query query = query_of(shape, scale);
  const fvlm_support support = support_of(plugin, query);
  EXPECT_GT(support.score, 0) << support.reason;
  fvlm_requirements needs{};
  needs.struct_size = sizeof needs;
  EXPECT_EQ(plugin->requirements(plugin.instance(), &query, &needs, nullptr), FVLM_OK);
  EXPECT_EQ(needs.saved_count, 1u);

  Results r{GuardedTensor(shape.dtype, q.shape(), shape.row_gap), GuardedTensor(shape.dtype, q.shape(), shape.row_gap),
            GuardedTensor(shape.dtype, k.shape(), shape.row_gap), GuardedTensor(shape.dtype, k.shape(), shape.row_gap)};
  GuardedTensor saved(f32, {needs.saved[0].shape[0], needs.saved[0].shape[1]});
  GuardedTensor cu_q = offsets(shape.lengths_q), cu_kv = offsets(shape.lengths_kv);
  {
    Call call(host, needs.forward_workspace);
    fvlm_attention_forward a{};
    a.struct_size = sizeof a;
    a.q = q.get(), a.k = k.get(), a.v = v.get(), a.out = r.out.get();
    a.cu_seqlens_q = cu_q.get(), a.cu_seqlens_kv = cu_kv.get();
    a.saved[0] = saved.get();
    EXPECT_EQ(plugin->forward(plugin.instance(), call.get(), &query, &a), FVLM_OK) << call.error();
    EXPECT_TRUE(call.intact());
  }
  {
    Call call(host, needs.backward_workspace);
    fvlm_attention_backward a{};
    a.struct_size = sizeof a;
    a.q = q.get(), a.k = k.get(), a.v = v.get(), a.out = r.out.get(), a.d_out = d_out.get();
    a.cu_seqlens_q = cu_q.get(), a.cu_seqlens_kv = cu_kv.get();
    a.saved[0] = saved.get();
    a.d_q = r.d_q.get(), a.d_k = r.d_k.get(), a.d_v = r.d_v.get();
    EXPECT_EQ(plugin->backward(plugin.instance(), call.get(), &query, &a), FVLM_OK) << call.error();
    EXPECT_TRUE(call.intact());
  }
  for (const auto& [tensor, name] : {std::pair{&r.out, "out"}, {&r.d_q, "d_q"}, {&r.d_k, "d_k"}, {&r.d_v, "d_v"}})
    tensor->expect_intact(name);
  return r;
}

// Fills the rows at and after `first` with NaN.
void poison(GuardedTensor& tensor, int64_t first) {
  const int64_t row = tensor.shape()[1] * tensor.shape()[2];
  for (int64_t i = first * row; i < tensor.count(); ++i) tensor.set(i, std::numeric_limits<double>::quiet_NaN());
}

const std::vector<Shape> shapes{
    {"one token", {1}, {1}, 1, 1, 1, true},
    {"one segment", {70}, {70}, 2, 1, 64, true},
    {"ragged causal", {64, 1, 130, 7, 65}, {64, 1, 130, 7, 65}, 6, 2, 64, true},
    {"ragged full", {64, 1, 130, 7, 65}, {64, 1, 130, 7, 65}, 6, 2, 64, false},
    {"nine heads on three", {100, 49}, {100, 49}, 9, 3, 64, true},
    {"empty segments", {0, 33, 0, 5, 0}, {0, 33, 0, 5, 0}, 2, 2, 16, true},
    {"queries without keys", {20, 9, 3}, {0, 9, 0}, 2, 1, 16, false},
    {"keys without queries", {0, 9, 0}, {20, 9, 3}, 2, 1, 16, true},
    {"more keys than queries, causal", {50, 17}, {170, 40}, 4, 2, 32, true},
    {"more queries than keys, causal", {170, 40}, {50, 17}, 4, 2, 32, true},
    {"one query on a frame", {1, 1, 1}, {257, 257, 257}, 6, 6, 64, false},
    {"a few queries, grouped, causal", {2, 1, 2}, {90, 33, 2}, 6, 2, 64, true},
    {"a few queries before any key", {5, 3}, {2, 1}, 1, 1, 24, true},
    {"frame on itself", {257}, {257}, 2, 2, 64, false},
    {"head_dim 16", {77, 20}, {77, 20}, 4, 2, 16, true},
    {"head_dim 1", {30}, {30}, 1, 1, 1, true},
    {"head_dim 37", {77, 3}, {77, 3}, 3, 1, 37, true},
    {"head_dim 80", {65}, {65}, 1, 1, 80, false},
    {"head_dim 130", {50, 2}, {50, 2}, 2, 1, 130, true},
    {"padding", {40, 2}, {40, 2}, 2, 1, 32, true, 9, 5},
    {"nothing but padding", {0, 0}, {0, 0}, 2, 1, 16, true, 4, 4},
    {"strided", {66, 2}, {66, 2}, 4, 2, 32, true, 3, 3, f32, 11},
    {"64 segments", std::vector<int>(64, 9), std::vector<int>(64, 9), 3, 1, 16, true},
    {"longer than a forward task", {1000}, {1000}, 1, 1, 16, true},
    {"bfloat16", {64, 33, 1}, {64, 33, 1}, 4, 2, 64, true, 3, 3, bf16},
    {"bfloat16, odd head_dim, strided", {64, 2}, {70, 9}, 2, 2, 20, false, 1, 1, bf16, 3},
};

class AttentionCpu : public ::testing::TestWithParam<std::string> {
 protected:
  void SetUp() override { setenv("FVLM_CPU_LEVEL", GetParam().c_str(), 1); }
  void TearDown() override { unsetenv("FVLM_CPU_LEVEL"); }
};

TEST_P(AttentionCpu, agrees_with_float64_loops) {
  for (const Shape& shape : shapes) {
    SCOPED_TRACE(shape.name);
    const float scale = 1.0f / std::sqrt(static_cast<float>(shape.head_dim));
    const int64_t tokens_q = sum_of(shape.lengths_q), tokens_kv = sum_of(shape.lengths_kv);
    GuardedTensor q(shape.dtype, {tokens_q + shape.padding_q, shape.heads_q, shape.head_dim}, shape.row_gap);
    GuardedTensor k(shape.dtype, {tokens_kv + shape.padding_kv, shape.heads_kv, shape.head_dim}, shape.row_gap);
    GuardedTensor v(shape.dtype, k.shape(), shape.row_gap), d_out(shape.dtype, q.shape(), shape.row_gap);
    q.random(1, 1.5f), k.random(2), v.random(3), d_out.random(4);
    const Expected expected = reference(shape, scale, q, k, v, d_out);
    poison(q, tokens_q), poison(d_out, tokens_q), poison(k, tokens_kv), poison(v, tokens_kv);
    const Results got = run(shape, 2, scale, q, k, v, d_out);
    const bool rounded = shape.dtype.code == FVLM_BFLOAT;
    expect_close(got.out, expected.out, rounded ? 5e-3 : 3e-6, "out");
    // Backward reads the rounded output.
    expect_close(got.d_q, expected.d_q, rounded ? 2e-2 : 6e-6, "d_q");
    expect_close(got.d_k, expected.d_k, rounded ? 2e-2 : 6e-6, "d_k");
    expect_close(got.d_v, expected.d_v, rounded ? 2e-2 : 6e-6, "d_v");
  }
}

TEST_P(AttentionCpu, has_the_same_bits_with_any_number_of_threads) {
  const Shape shape{"", {64, 1, 130, 600, 65}, {64, 1, 130, 600, 65}, 6, 2, 32, true};
  GuardedTensor q(f32, {860, 6, 32}), k(f32, {860, 2, 32}), v(f32, {860, 2, 32}), d_out(f32, {860, 6, 32});
  q.random(1), k.random(2), v.random(3), d_out.random(4);
  const Results one = run(shape, 1, 0.2f, q, k, v, d_out);
  for (const int threads : {2, 3}) {
    const Results many = run(shape, threads, 0.2f, q, k, v, d_out);
    EXPECT_EQ(one.out.bytes(), many.out.bytes()) << threads << " threads";
    EXPECT_EQ(one.d_q.bytes(), many.d_q.bytes()) << threads << " threads";
    EXPECT_EQ(one.d_k.bytes(), many.d_k.bytes()) << threads << " threads";
    EXPECT_EQ(one.d_v.bytes(), many.d_v.bytes()) << threads << " threads";
  }
}

// Scores in the hundreds, which overflow a softmax that does not subtract the maximum.
TEST_P(AttentionCpu, survives_large_scores) {
  const Shape shape{"", {100}, {100}, 1, 1, 16, true};
  GuardedTensor q(f32, {100, 1, 16}), k(f32, {100, 1, 16}), v(f32, {100, 1, 16}), d_out(f32, {100, 1, 16});
  q.random(1, 20), k.random(2, 20), v.random(3), d_out.random(4);
  const Expected expected = reference(shape, 1.0, q, k, v, d_out);
  const Results got = run(shape, 1, 1.0f, q, k, v, d_out);
  expect_close(got.out, expected.out, 2e-3, "out"); // scores of 5000 have an error of 3e-4 in float32
}

TEST_P(AttentionCpu, lets_a_nan_through_to_its_own_segment_only) {
  const Shape shape{"", {70, 70}, {70, 70}, 1, 1, 16, false};
  GuardedTensor q(f32, {140, 1, 16}), k(f32, {140, 1, 16}), v(f32, {140, 1, 16}), d_out(f32, {140, 1, 16});
  q.random(1), k.random(2), v.random(3), d_out.random(4);
  k.set(3, std::numeric_limits<double>::quiet_NaN());
  const Results got = run(shape, 2, 1.0f, q, k, v, d_out);
  for (int64_t i = 0; i < 140 * 16; ++i) {
    EXPECT_EQ(std::isnan(got.out.value(i)), i < 70 * 16) << "out, element " << i;
    EXPECT_EQ(std::isnan(got.d_q.value(i)), i < 70 * 16) << "d_q, element " << i;
  }
}

INSTANTIATE_TEST_SUITE_P(levels, AttentionCpu, ::testing::ValuesIn(cpu_levels()),
                         [](const auto& level) { return level.param; });

TEST(AttentionCpuContract, memory_is_linear_in_tokens) {
  const Host host(2);
  const Attention plugin(FVLM_TEST_LIBRARY, FVLM_ATTENTION_KIND, host);
  const auto needs = [&](int length) {
    const fvlm_attention_query query = query_of({"", {length}, {length}, 9, 3, 64, true}, 0.125f);
    fvlm_requirements r{};
    r.struct_size = sizeof r;
    EXPECT_EQ(plugin->requirements(plugin.instance(), &query, &r, nullptr), FVLM_OK);
    return r.forward_workspace + r.backward_workspace;
  };
  EXPECT_LE(needs(16384), 17 * needs(1024));
}

TEST(AttentionCpuContract, refuses_what_it_cannot_do_with_a_reason) {
  const Host host(1);
  const Attention plugin(FVLM_TEST_LIBRARY, FVLM_ATTENTION_KIND, host);
  const auto reason = [&](auto change) {
    fvlm_attention_query query = query_of({"", {4}, {4}, 2, 1, 16, true}, 1);
    change(query);
    const fvlm_support support = support_of(plugin, query);
    EXPECT_EQ(support.score, 0);
    return std::string(support.reason);
  };
  EXPECT_NE(reason([](auto& q) { q.rotary_dim = 16; }).find("rotary_dim"), std::string::npos);
  EXPECT_NE(reason([](auto& q) { q.dtype = {FVLM_FLOAT, 64, 1}; }).find("float64"), std::string::npos);
  EXPECT_NE(reason([](auto& q) { q.device.type = FVLM_CUDA; }).find("CPU"), std::string::npos);
  EXPECT_NE(reason([](auto& q) { q.heads_q = 3, q.heads_kv = 2; }).find("3 query heads"), std::string::npos);
  EXPECT_NE(reason([](auto& q) { q.head_dim = 4096; }).find("head_dim 4096"), std::string::npos);
}

TEST(AttentionCpuContract, refuses_broken_segment_offsets_before_it_writes) {
  const Host host(1);
  const Attention plugin(FVLM_TEST_LIBRARY, FVLM_ATTENTION_KIND, host);
  fvlm_attention_query query = query_of({"", {4, 4}, {4, 4}, 1, 1, 16, true}, 1);
  query.needs_backward = 0;
  fvlm_requirements needs{};
  needs.struct_size = sizeof needs;
  ASSERT_EQ(plugin->requirements(plugin.instance(), &query, &needs, nullptr), FVLM_OK);
  EXPECT_EQ(needs.saved_count, 0u);
  GuardedTensor q(f32, {8, 1, 16}), out(f32, {8, 1, 16});
  q.random(1), out.fill(7);
  for (const auto& broken : {std::vector<int>{0, 5, 8}, {0, 4, 9}, {0, 4, 2}, {1, 4, 8}}) {
    GuardedTensor cu(i32, {3});
    for (int i = 0; i < 3; ++i) cu.set(i, broken[static_cast<size_t>(i)]);
    Call call(host, needs.forward_workspace);
    fvlm_attention_forward a{};
    a.struct_size = sizeof a;
    a.q = a.k = a.v = q.get(), a.out = out.get(), a.cu_seqlens_q = a.cu_seqlens_kv = cu.get();
    EXPECT_EQ(plugin->forward(plugin.instance(), call.get(), &query, &a), FVLM_ERROR_ARGUMENT);
    EXPECT_NE(call.error().find("cu_seqlens_q"), std::string::npos) << call.error();
    EXPECT_EQ(out.values(), std::vector<float>(8 * 16, 7.0f));
  }
}

} // namespace
} // namespace fvlm::testing
