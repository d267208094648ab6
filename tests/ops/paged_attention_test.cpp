// Attention over pages: the reference against softmax attention over each row's keys, one row and head at a time.
#include "ops/operations.h"
#include "ops/reference_manifest.h"
#include "tools.h"

#include <ATen/ops/full.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>

using namespace fvlm;
using namespace fvlm::ops;
using at::Tensor;

namespace {

constexpr int64_t page_rows = 4, all_pages = 9;
constexpr int32_t nothing = -7; // an entry that must not be read

struct PagedCase {
  std::string name;
  std::vector<std::vector<int32_t>> table; // of each sequence, filled up with `nothing`
  std::vector<int32_t> sequences, lengths; // of each row
  int64_t heads_q, heads_kv, dim;
};
void PrintTo(const PagedCase& c, std::ostream* out) {
  *out << c.name;
}

struct PagedProblem {
  Tensor q;
  PagedKeys keys;
};

// Rows of pages that no row sees hold NaN.
PagedProblem make_paged_problem(const PagedCase& c, at::ScalarType type) {
  const int64_t rows = std::ssize(c.sequences);
  size_t max_pages = 2;
  for (const auto& of : c.table) max_pages = std::max(max_pages, of.size());
  std::vector<int32_t> table;
  for (const auto& of : c.table) {
    table.insert(table.end(), of.begin(), of.end());
    table.insert(table.end(), max_pages - of.size(), nothing);
  }
  const Tensor k = random({all_pages, page_rows, c.heads_kv, c.dim}, 1), v = random(k.sizes(), 2),
               q = random({rows, c.heads_q, c.dim}, 3);
  Tensor is_seen = at::zeros({all_pages, page_rows}, at::kBool);
  for (int64_t row = 0; row < rows; ++row) {
    const auto at = static_cast<size_t>(row);
    if (c.lengths[at] == 0) q[row].fill_(std::nan(""));
    for (int32_t j = 0; j < c.lengths[at]; ++j)
      is_seen[c.table[static_cast<size_t>(c.sequences[at])][static_cast<size_t>(j / page_rows)]][j % page_rows] = true;
  }
  for (const Tensor* pool : {&k, &v}) pool->masked_fill_(is_seen.logical_not().unsqueeze(2).unsqueeze(3), std::nan(""));
  return {q.to(type),
          {k.to(type), v.to(type),
           at::tensor(table, at::kInt).view({std::ssize(c.table), static_cast<int64_t>(max_pages)}),
           at::tensor(c.sequences, at::kInt), at::tensor(c.lengths, at::kInt)}};
}

Tensor expected_paged(const PagedCase& c, const PagedProblem& p) {
  Tensor out = at::zeros_like(p.q, at::kDouble);
  for (int64_t row = 0; row < p.q.size(0); ++row)
    for (int64_t head = 0; head < c.heads_q; ++head) {
      const auto at = static_cast<size_t>(row);
      std::vector<Tensor> keys, values;
      for (int32_t j = 0; j < c.lengths[at]; ++j) {
        const auto page = c.table[static_cast<size_t>(c.sequences[at])][static_cast<size_t>(j / page_rows)];
        const int64_t kv_head = head / (c.heads_q / c.heads_kv);
        keys.push_back(p.keys.k_pages[page][j % page_rows][kv_head].to(at::kDouble));
        values.push_back(p.keys.v_pages[page][j % page_rows][kv_head].to(at::kDouble));
      }
      if (keys.empty()) continue;
      const Tensor scores = at::matmul(at::stack(keys), p.q[row][head].to(at::kDouble)) / std::sqrt(c.dim);
      out[row][head] = at::matmul(at::softmax(scores, 0), at::stack(values));
    }
  return out;
}

const PagedCase paged_cases[] = {
    {"one_key", {{3}}, {0}, {1}, 1, 1, 4},
    {"ragged_lengths", {{3, 1}, {8}, {0, 2, 5}}, {0, 1, 2}, {5, 4, 11}, 2, 2, 4},
    {"grouped_heads", {{3, 1}, {8}}, {1, 0}, {3, 8}, 6, 2, 3},
    {"shared_pages", {{3, 1}, {3, 6}, {3, 1, 7}}, {0, 1, 2}, {7, 6, 12}, 4, 2, 4},
    {"rows_of_a_prompt", {{5, 0, 2}, {4}}, {0, 0, 0, 0, 1, 0}, {3, 4, 5, 6, 2, 7}, 3, 1, 5},
    {"padding_rows", {{5, 0}, {4}}, {0, nothing, 1, nothing}, {6, 0, 4, 0}, 2, 1, 4},
    {"all_padding", {{5}}, {nothing, nothing}, {0, 0}, 2, 1, 4},
    {"no_rows", {{5}}, {}, {}, 2, 1, 4},
    {"no_sequences", {}, {nothing}, {0}, 2, 1, 4},
    {"more_rows_than_at_once", {{5, 0, 2, 1}}, std::vector<int32_t>(37, 0), std::vector<int32_t>(37, 13), 2, 1, 4},
};

// Operations that have the reference alone.
struct ReferenceOperations {
  explicit ReferenceOperations(at::ScalarType type) {
    registry.add_static(reference_manifest(), [] { return &reference_entry; });
    options.dtype = type;
  }
  Tensor attend(const Tensor& q, int64_t heads, const PagedKeys& keys, const AttentionShape& shape) {
    Operations operations(registry, options);
    return operations.paged_attention(q, heads, keys, shape);
  }
  Registry registry{RegistryOptions{}};
  OperationsOptions options;
};

Tensor attend(const PagedCase& c, const PagedProblem& p, at::ScalarType type) {
  return ReferenceOperations(type).attend(p.q.flatten(1), c.heads_q, p.keys, {c.dim}).view(p.q.sizes());
}

class Paged : public testing::TestWithParam<PagedCase> {};

} // namespace

TEST_P(Paged, FollowsTheDefinition) {
  const PagedProblem p = make_paged_problem(GetParam(), at::kDouble);
  expect_close(attend(GetParam(), p, at::kDouble), expected_paged(GetParam(), p), 1e-7, "out"); // the scale is a float
}

TEST_P(Paged, LowPrecisionRoundsResultsNotSums) {
  for (const auto& [type, tolerance] : {std::pair{at::kFloat, 1e-6}, {at::kBFloat16, 8e-3}, {at::kHalf, 1e-3}}) {
    const PagedProblem p = make_paged_problem(GetParam(), type);
    const Tensor out = attend(GetParam(), p, type);
    EXPECT_EQ(out.scalar_type(), type);
    expect_close(out, expected_paged(GetParam(), p), tolerance, c10::toString(type));
  }
}

INSTANTIATE_TEST_SUITE_P(Reference, Paged, testing::ValuesIn(paged_cases), testing::PrintToStringParamName());

TEST(PagedAttention, TakesViewsOfWiderRows) {
  const PagedCase& c = paged_cases[3];
  const PagedProblem p = make_paged_problem(c, at::kDouble);
  // q as columns of q, k and v; keys and values as the two halves of one pool.
  const Tensor qkv = at::full({p.q.size(0), p.q[0].numel() + 10}, std::nan(""), at::kDouble);
  const Tensor q = qkv.narrow(1, 4, p.q[0].numel());
  q.copy_(p.q.flatten(1));
  const Tensor pool = at::full({all_pages, page_rows, 2 * c.heads_kv, c.dim}, std::nan(""), at::kDouble);
  PagedKeys keys = p.keys;
  keys.k_pages = pool.narrow(2, 0, c.heads_kv).copy_(p.keys.k_pages);
  keys.v_pages = pool.narrow(2, c.heads_kv, c.heads_kv).copy_(p.keys.v_pages);
  expect_close(ReferenceOperations(at::kDouble).attend(q, c.heads_q, keys, {c.dim}), expected_paged(c, p).flatten(1),
               1e-12, "out");
}

TEST(PagedAttention, ScoreFactorScalesTheScores) {
  const PagedCase& c = paged_cases[1];
  PagedProblem p = make_paged_problem(c, at::kDouble);
  AttentionShape shape{c.dim};
  shape.score_factor = 2.5;
  const Tensor out = ReferenceOperations(at::kDouble).attend(p.q.flatten(1), c.heads_q, p.keys, shape);
  p.q.mul_(2.5);
  expect_close(out, expected_paged(c, p).flatten(1), 1e-6, "out"); // the scale is a float
}

TEST(PagedAttention, AnotherPluginServesAPreferenceWithoutIt) {
  const PagedCase& c = paged_cases[1];
  const PagedProblem p = make_paged_problem(c, at::kFloat);
  ReferenceOperations only(at::kFloat);
  only.options.attention.names = {"no-such-plugin"};
  expect_close(only.attend(p.q.flatten(1), c.heads_q, p.keys, {c.dim}), expected_paged(c, p).flatten(1), 1e-6, "out");
}

namespace {

// Rows that each continue a sequence, before their keys are in the pages; and what append_and_attend() makes of them.
struct Step {
  Tensor out, k_pages, v_pages;
};
// Memory::together: keys and values of a row lie side by side, as in KvPages.
enum class Memory { apart, together };
Step append_and_attend(bool independent, bool normed, double theta, Memory memory = Memory::apart) {
  ReferenceOperations only(at::kDouble);
  Operations operations(only.registry, only.options);
  const PagedCase c{"", {{3, 1}, {8}, {0, 2, 5}}, {0, 1, 2}, {5, 4, 11}, 4, 2, 6};
  PagedProblem p = make_paged_problem(c, at::kDouble);
  std::vector<int64_t> places;
  for (size_t row = 0; row < 3; ++row)
    places.push_back(c.table[row][static_cast<size_t>((c.lengths[row] - 1) / page_rows)] * page_rows +
                     (c.lengths[row] - 1) % page_rows);
  for (const Tensor* pages : {&p.keys.k_pages, &p.keys.v_pages})
    pages->flatten(0, 1).index_fill_(0, at::tensor(places), std::nan(""));
  if (memory == Memory::together) {
    const Tensor pool = at::stack({p.keys.k_pages, p.keys.v_pages}, 3);
    p.keys.k_pages = pool.select(3, 0), p.keys.v_pages = pool.select(3, 1);
  }
  AttentionShape shape{c.dim};
  shape.rotary = {c.dim, theta};
  const auto weight = [&](uint64_t seed) {
    auto parameter = std::make_shared<Parameter>();
    parameter->value = random({c.dim}, seed);
    return Weight(std::move(parameter));
  };
  const Operations::HeadNorms norms{weight(21), weight(22), 1e-3};
  const Tensor qkv = random({3, (c.heads_q + 2 * c.heads_kv) * c.dim}, 20);
  const Tensor out = operations.append_and_attend(
      Value(qkv), c.heads_q, p.keys, p.keys.lengths.sub(1),
      at::stack({at::tensor(places).floor_divide(page_rows), at::tensor(places).remainder(page_rows)}), independent,
      shape, normed ? &norms : nullptr);
  return {out, p.keys.k_pages, p.keys.v_pages};
}

} // namespace

TEST(PagedAttention, OneCallThatAppendsIsTheCallsOneByOne) {
  for (const bool normed : {false, true}) {
    const Step one = append_and_attend(true, normed, 100);
    EXPECT_FALSE(one.out.isnan().any().item<bool>());
    EXPECT_GT((one.out - append_and_attend(true, normed, 10).out).abs().max().item<double>(), 1e-3) << "it rotates";
    for (const Memory memory : {Memory::apart, Memory::together}) {
      const Step many = append_and_attend(false, normed, 100, memory);
      expect_close(one.out, many.out, 1e-7, "out");
      expect_close(one.k_pages.nan_to_num(7), many.k_pages.nan_to_num(7), 1e-7, "k_pages");
      expect_close(one.v_pages.nan_to_num(7), many.v_pages.nan_to_num(7), 1e-12, "v_pages");
    }
  }
}
