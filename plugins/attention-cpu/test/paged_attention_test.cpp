// paged_attention_test.cpp: attention over pages against plain loops in float64.
#include "common/testing/guarded.h"

#include <algorithm>
#include <limits>

namespace fvlm::testing {
namespace {

constexpr double nan_value = std::numeric_limits<double>::quiet_NaN();
constexpr int pool_pages = 41;

struct PagedShape {
  const char* name;
  std::vector<int> sequences, lengths; // of each row
  int heads_q, heads_kv, head_dim, page_rows;
  fvlm_dtype dtype = f32;
  int row_gap = 0;
};

// Row `first` to `first + count - 1` of a prompt of sequence 0.
PagedShape prompt_shape(const char* name, int first, int count, int heads_q, int heads_kv, int head_dim) {
  PagedShape shape{name, std::vector<int>(static_cast<size_t>(count), 0), {}, heads_q, heads_kv, head_dim, 16};
  for (int row = 0; row < count; ++row) shape.lengths.push_back(first + row + 1);
  return shape;
}

struct PagedTensors {
  GuardedTensor q, k, v, table, sequences, lengths, out;
};

// The page of each sequence's n-th page; every two sequences share their first one. Others are spread over the pool.
int page_of(int sequence, int page, int max_pages) {
  return page == 0 ? sequence / 2 : 4 + (sequence * max_pages + page) * 17 % (pool_pages - 4);
}

PagedTensors make_tensors(const PagedShape& s) {
  const int64_t rows = static_cast<int64_t>(s.lengths.size());
  const int longest = s.lengths.empty() ? 0 : *std::max_element(s.lengths.begin(), s.lengths.end());
  const int max_pages = longest / s.page_rows + 2;
  PagedTensors t{GuardedTensor(s.dtype, {rows, s.heads_q, s.head_dim}, s.row_gap),
                 GuardedTensor(s.dtype, {pool_pages, s.page_rows, s.heads_kv, s.head_dim}, s.row_gap),
                 GuardedTensor(s.dtype, {pool_pages, s.page_rows, s.heads_kv, s.head_dim}, s.row_gap),
                 GuardedTensor(i32, {4, max_pages}),
                 GuardedTensor(i32, {rows}),
                 GuardedTensor(i32, {rows}),
                 GuardedTensor(s.dtype, {rows, s.heads_q, s.head_dim}, s.row_gap)};
  t.q.random(1, 1.5f), t.k.random(2), t.v.random(3);
  std::vector<int> longest_of(4, 0);
  for (size_t row = 0; row < s.lengths.size(); ++row) {
    t.sequences.set(static_cast<int64_t>(row), s.lengths[row] == 0 ? -9 : s.sequences[row]);
    t.lengths.set(static_cast<int64_t>(row), s.lengths[row]);
    if (s.lengths[row] == 0) continue;
    int& longest = longest_of[static_cast<size_t>(s.sequences[row])];
    longest = std::max(longest, s.lengths[row]);
  }
  for (int sequence = 0; sequence < 4; ++sequence)
    for (int page = 0; page < max_pages; ++page)
      t.table.set(sequence * max_pages + page, page * s.page_rows < longest_of[static_cast<size_t>(sequence)]
                                                   ? page_of(sequence, page, max_pages)
                                                   : 1 << 30);
  return t;
}

// Also fills what no row sees with NaN.
std::vector<double> reference(const PagedShape& s, double scale, PagedTensors& t) {
  const auto q = t.q.values(), k = t.k.values(), v = t.v.values();
  const int dim = s.head_dim, group = s.heads_q / s.heads_kv, max_pages = static_cast<int>(t.table.shape()[1]);
  std::vector<double> out(q.size(), 0);
  std::vector<bool> seen(k.size());
  for (size_t row = 0; row < s.lengths.size(); ++row)
    for (int h = 0; h < s.heads_q; ++h) {
      const size_t at_q = (row * static_cast<size_t>(s.heads_q) + static_cast<size_t>(h)) * static_cast<size_t>(dim);
      std::vector<double> p;
      std::vector<size_t> keys;
      double largest = -1e300, total = 0;
      for (int j = 0; j < s.lengths[row]; ++j) {
        const int page = page_of(s.sequences[row], j / s.page_rows, max_pages);
        keys.push_back(static_cast<size_t>(((page * s.page_rows + j % s.page_rows) * s.heads_kv + h / group) * dim));
        double dot = 0;
        for (int d = 0; d < dim; ++d) {
          dot += static_cast<double>(q[at_q + static_cast<size_t>(d)]) * k[keys.back() + static_cast<size_t>(d)];
          seen[keys.back() + static_cast<size_t>(d)] = true;
        }
        p.push_back(dot * scale);
        largest = std::max(largest, p.back());
      }
      for (double& x : p) total += x = std::exp(x - largest);
      for (size_t j = 0; j < p.size(); ++j)
        for (size_t d = 0; d < static_cast<size_t>(dim); ++d) out[at_q + d] += p[j] / total * v[keys[j] + d];
    }
  for (size_t i = 0; i < seen.size(); ++i)
    if (!seen[i]) t.k.set(static_cast<int64_t>(i), nan_value), t.v.set(static_cast<int64_t>(i), nan_value);
  return out;
}

fvlm_paged_attention_query query_of(const PagedShape& s, const PagedTensors& t, float scale) {
  fvlm_paged_attention_query query{};
  query.struct_size = sizeof query;
  query.device = {FVLM_CPU, 0};
  query.dtype = s.dtype;
  query.heads_q = s.heads_q;
  query.heads_kv = s.heads_kv;
  query.head_dim = s.head_dim;
  query.page_rows = s.page_rows;
  query.scale = scale;
  query.rows = static_cast<int64_t>(s.lengths.size());
  query.sequences = 4;
  query.pages = pool_pages;
  query.max_pages = t.table.shape()[1];
  return query;
}

fvlm_status run(const fvlm_paged_attention_query& query, PagedTensors& t, int threads, std::string* why = nullptr) {
  const Host host(threads);
  const Plugin<fvlm_attention_v1> plugin(FVLM_TEST_LIBRARY, FVLM_ATTENTION_KIND, host);
  fvlm_requirements needs{};
  needs.struct_size = sizeof needs;
  EXPECT_EQ(plugin->requirements_paged(plugin.instance(), &query, &needs, nullptr), FVLM_OK);
  EXPECT_EQ(needs.saved_count, 0u);
  Call call(host, needs.forward_workspace);
  fvlm_paged_attention a{};
  a.struct_size = sizeof a;
  a.q = t.q.get(), a.k_pages = t.k.get(), a.v_pages = t.v.get(), a.out = t.out.get();
  a.page_table = t.table.get(), a.sequences = t.sequences.get(), a.lengths = t.lengths.get();
  const fvlm_status status = plugin->forward_paged(plugin.instance(), call.get(), &query, &a);
  if (why) *why = call.error();
  EXPECT_TRUE(call.intact());
  t.out.expect_intact("out");
  return status;
}

const std::vector<PagedShape> paged_shapes{
    {"one key", {0}, {1}, 1, 1, 1, 16},
    {"rows that continue sequences", {0, 1, 2, 3}, {70, 16, 17, 201}, 9, 3, 64, 16},
    {"pages of 48", {0, 1, 2, 3}, {70, 48, 49, 201}, 6, 2, 32, 48},
    {"more heads of a group than are few", {0, 1}, {33, 130}, 8, 1, 64, 32},
    {"padding between", {0, 0, 2, 0, 3}, {40, 0, 17, 0, 1}, 2, 1, 24, 16},
    {"nothing but padding", {0, 0}, {0, 0}, 2, 1, 16, 16},
    prompt_shape("a prompt", 0, 150, 9, 3, 64),
    prompt_shape("a chunk of a prompt", 100, 37, 4, 2, 80),
    prompt_shape("longer than a task", 0, 520, 2, 1, 16),
    {"a prompt between others", {1, 0, 0, 0, 2, 2}, {5, 20, 21, 22, 90, 91}, 6, 2, 37, 16},
    {"rows of one sequence out of order", {0, 0, 0}, {30, 12, 13}, 2, 2, 16, 16},
    {"strided", {0, 1, 1}, {50, 20, 21}, 4, 2, 32, 16, f32, 11},
    {"bfloat16", {0, 1, 2, 2, 2}, {70, 16, 33, 34, 35}, 9, 3, 64, 16, bf16},
    {"bfloat16, odd head_dim, strided", {0, 3}, {70, 9}, 2, 2, 20, 16, bf16, 3},
};

class PagedAttentionCpu : public ::testing::TestWithParam<std::string> {
 protected:
  void SetUp() override { setenv("FVLM_CPU_LEVEL", GetParam().c_str(), 1); }
  void TearDown() override { unsetenv("FVLM_CPU_LEVEL"); }
};

TEST_P(PagedAttentionCpu, agrees_with_float64_loops_at_any_number_of_threads) {
  for (const PagedShape& shape : paged_shapes) {
    SCOPED_TRACE(shape.name);
    const float scale = 1.0f / std::sqrt(static_cast<float>(shape.head_dim));
    PagedTensors t = make_tensors(shape);
    const auto expected = reference(shape, scale, t);
    const auto query = query_of(shape, t, scale);
    ASSERT_EQ(run(query, t, 1), FVLM_OK);
    expect_close(t.out, expected, shape.dtype.code == FVLM_BFLOAT ? 5e-3 : 3e-6, "out");
    const auto bytes = t.out.bytes();
    t.out.fill(7);
    ASSERT_EQ(run(query, t, 3), FVLM_OK);
    EXPECT_EQ(bytes, t.out.bytes());
  }
}

INSTANTIATE_TEST_SUITE_P(levels, PagedAttentionCpu, ::testing::ValuesIn(cpu_levels()),
                         [](const auto& level) { return level.param; });

TEST(PagedAttentionCpuContract, refuses_a_page_and_a_sequence_that_do_not_exist) {
  const PagedShape shape{"", {0, 1}, {40, 17}, 2, 1, 16, 16};
  std::string why;
  PagedTensors page = make_tensors(shape), sequence = make_tensors(shape), longer = make_tensors(shape);
  page.table.set(1, pool_pages);
  EXPECT_EQ(run(query_of(shape, page, 1), page, 1, &why), FVLM_ERROR_ARGUMENT);
  EXPECT_NE(why.find("page 41 of 41"), std::string::npos) << why;
  sequence.sequences.set(1, 4);
  EXPECT_EQ(run(query_of(shape, sequence, 1), sequence, 1, &why), FVLM_ERROR_ARGUMENT);
  EXPECT_NE(why.find("row 1: 17 keys of sequence 4"), std::string::npos) << why;
  longer.lengths.set(0, 65);
  EXPECT_EQ(run(query_of(shape, longer, 1), longer, 1, &why), FVLM_ERROR_ARGUMENT);
  EXPECT_NE(why.find("row 0: 65 keys"), std::string::npos) << why;
}

TEST(PagedAttentionCpuContract, refuses_pages_that_are_no_multiple_of_16_rows) {
  const Host host(1);
  const Plugin<fvlm_attention_v1> plugin(FVLM_TEST_LIBRARY, FVLM_ATTENTION_KIND, host);
  const PagedShape shape{"", {0}, {4}, 2, 1, 16, 16};
  const PagedTensors t = make_tensors(shape);
  auto query = query_of(shape, t, 1);
  query.page_rows = 24;
  fvlm_support support{};
  support.struct_size = sizeof support;
  plugin->supports_paged(&query, &support);
  EXPECT_EQ(support.score, 0);
  EXPECT_NE(std::string(support.reason).find("page_rows 24"), std::string::npos) << support.reason;
}

} // namespace
} // namespace fvlm::testing
