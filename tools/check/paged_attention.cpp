// Attention over pages: trials, the float64 formula, and rows. A plugin of the kind attention may leave it out.
#include "check/attention.h"
#include "check/formulas.h"
#include "check/generic.h"
#include "check/invalid_queries.h"
#include "check/workbench.h"
#include "plugin/kinds.h"

#include <ATen/ops/full.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/rsqrt.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <set>

namespace fvlm::check {
namespace {

constexpr double not_a_number = std::numeric_limits<double>::quiet_NaN();
constexpr int32_t no_page = -1; // an entry of the table without content

struct PagedCase {
  at::ScalarType dtype = at::kFloat;
  int heads_q = 2, heads_kv = 2, head_dim = 64, page_rows = 16;
  std::vector<int64_t> keys = {40, 7, 33}; // of each sequence
  int64_t shared = 0;                      // leading pages that all sequences have in common
  // Of each row; empty: one row for each sequence, which attends to all of its keys.
  std::vector<int32_t> sequences = {}, lengths = {};
  double magnitude = 1;
  // What a call that appends does, besides attending.
  bool appends = false, inverse = false, frequencies = false, qk_norm = false, norm_weights = true;
  int rotary_dim = 0;
  int window = 0;
  bool spoils_unseen = false; // NaN in rows of pages that no row sees, in padding rows, and nonsense in the table
  uint64_t seed = 1;

  int64_t first_key(int32_t length) const { return window > 0 ? std::max(0, length - window) : 0; }
  int64_t max_pages() const {
    int64_t most = 1;
    for (const int64_t count : keys) most = std::max(most, (count + page_rows - 1) / page_rows + 1);
    return most;
  }
  int64_t pages() const { return std::ssize(keys) * max_pages() + 3; }
  // Pages of a sequence lie apart, in no order.
  int32_t page(size_t sequence, int64_t index) const {
    const int64_t place = index < shared ? index : static_cast<int64_t>(sequence) * max_pages() + index;
    return static_cast<int32_t>((place * 5 + 2) % (pages() % 5 == 0 ? pages() - 1 : pages()));
  }
  std::vector<int32_t> row_sequences() const {
    if (!lengths.empty()) return sequences;
    std::vector<int32_t> all;
    for (size_t s = 0; s < keys.size(); ++s) all.push_back(static_cast<int32_t>(s));
    return all;
  }
  std::vector<int32_t> row_lengths() const {
    return lengths.empty() ? std::vector<int32_t>(keys.begin(), keys.end()) : lengths;
  }
};

struct PagedNumbers {
  at::Tensor q, k, v, table, sequences, lengths;
  at::Tensor own_k, own_v, q_norm, k_norm, frequencies; // of rows that are appended
};
constexpr double theta = 10000, epsilon = 1e-3;

// Writes numbers [rows or 1, ...] to where each row goes.
void rows_written(const PagedCase& c, const at::Tensor& pages, const at::Tensor& numbers) {
  const auto lengths = c.row_lengths(), sequences = c.row_sequences();
  for (size_t row = 0; row < lengths.size(); ++row) {
    if (lengths[row] == 0) continue;
    const int64_t last = lengths[row] - 1;
    pages[c.page(static_cast<size_t>(sequences[row]), last / c.page_rows)][last % c.page_rows].copy_(
        numbers[numbers.size(0) == 1 ? 0 : static_cast<int64_t>(row)]);
  }
}

PagedNumbers numbers_of(const PagedCase& c) {
  const auto lengths = c.row_lengths(), sequences = c.row_sequences();
  std::vector<int32_t> table;
  for (size_t s = 0; s < c.keys.size(); ++s)
    for (int64_t page = 0; page < c.max_pages(); ++page)
      table.push_back(page * c.page_rows < c.keys[s] ? c.page(s, page) : c.spoils_unseen ? no_page : 0);
  PagedNumbers n{normal({std::ssize(lengths), c.heads_q, c.head_dim}, c.seed * 4, c.dtype, c.magnitude),
                 normal({c.pages(), c.page_rows, c.heads_kv, c.head_dim}, c.seed * 4 + 1, c.dtype),
                 normal({c.pages(), c.page_rows, c.heads_kv, c.head_dim}, c.seed * 4 + 2, c.dtype),
                 at::tensor(table, at::kInt).view({std::ssize(c.keys), c.max_pages()}),
                 at::tensor(sequences, at::kInt),
                 at::tensor(lengths, at::kInt),
                 normal({std::ssize(lengths), c.heads_kv, c.head_dim}, c.seed * 4 + 3, c.dtype),
                 normal({std::ssize(lengths), c.heads_kv, c.head_dim}, c.seed * 4 + 4, c.dtype),
                 normal({c.head_dim}, c.seed * 4 + 5, c.dtype),
                 normal({c.head_dim}, c.seed * 4 + 6, c.dtype),
                 normal({c.rotary_dim / 2}, c.seed * 4 + 7, at::kDouble).abs()};
  if (c.appends) // what is overwritten is not read before
    for (const at::Tensor* pages : {&n.k, &n.v}) rows_written(c, *pages, at::full({1}, not_a_number, c.dtype));
  if (!c.spoils_unseen) return n;
  at::Tensor is_seen = at::zeros({c.pages(), c.page_rows}, at::kBool);
  for (size_t row = 0; row < lengths.size(); ++row) {
    if (lengths[row] == 0) n.q[static_cast<int64_t>(row)].fill_(not_a_number);
    for (int64_t key = c.first_key(lengths[row]); key < lengths[row]; ++key)
      is_seen[c.page(static_cast<size_t>(sequences[row]), key / c.page_rows)][key % c.page_rows] = true;
  }
  for (const at::Tensor* pages : {&n.k, &n.v})
    pages->masked_fill_(is_seen.logical_not().unsqueeze(2).unsqueeze(3), not_a_number);
  return n;
}

// Each row's attention over its gathered keys, in `work`.
at::Tensor formula(const PagedCase& c, const PagedNumbers& n, at::ScalarType work) {
  at::Tensor out = at::zeros(n.q.sizes(), work);
  const auto lengths = c.row_lengths(), sequences = c.row_sequences();
  for (size_t row = 0; row < lengths.size(); ++row) {
    if (lengths[row] == 0) continue;
    std::vector<int32_t> pages;
    for (int64_t first = 0; first < lengths[row]; first += c.page_rows)
      pages.push_back(c.page(static_cast<size_t>(sequences[row]), first / c.page_rows));
    const auto gathered = [&](const at::Tensor& of) { // [heads_q, keys, head_dim]
      return of.index_select(0, at::tensor(pages, at::kInt))
          .flatten(0, 1)
          .narrow(0, c.first_key(lengths[row]), lengths[row] - c.first_key(lengths[row]))
          .to(work)
          .repeat_interleave(c.heads_q / c.heads_kv, 1)
          .transpose(0, 1);
    };
    const at::Tensor q = n.q[static_cast<int64_t>(row)].to(work).unsqueeze(1);
    const at::Tensor scores =
        at::matmul(q, gathered(n.k).transpose(1, 2)) * (1 / std::sqrt(static_cast<double>(c.head_dim)));
    out[static_cast<int64_t>(row)] = at::matmul(at::softmax(scores, -1), gathered(n.v)).squeeze(1);
  }
  return out;
}

// Before the attention: q as it is attended with, and pages that have all rows.
PagedNumbers appended(const PagedCase& c, PagedNumbers n, at::ScalarType work) {
  const at::Tensor positions = n.lengths.sub(1).clamp_min(0);
  const auto prepared = [&](const at::Tensor& rows, const at::Tensor& weight) {
    at::Tensor x = rows.to(work);
    if (c.qk_norm) x = x * at::rsqrt(x.square().mean(-1, true) + epsilon);
    if (c.qk_norm && c.norm_weights) x = x * weight.to(work);
    if (c.rotary_dim == 0) return x;
    return c.frequencies ? rotate(x, positions, n.frequencies, c.inverse)
                         : rotate(x, positions, c.rotary_dim, theta, c.inverse);
  };
  n.q = prepared(n.q, n.q_norm);
  n.k = n.k.to(work).clone(), n.v = n.v.to(work).clone();
  rows_written(c, n.k, prepared(n.own_k, n.k_norm));
  rows_written(c, n.v, n.own_v.to(work));
  return n;
}

fvlm_paged_attention_query query_of(const PagedCase& c, at::Device device) {
  fvlm_paged_attention_query query{};
  query.struct_size = sizeof query;
  query.device = device_of(device);
  query.dtype = dtype_of(c.dtype);
  query.heads_q = c.heads_q;
  query.heads_kv = c.heads_kv;
  query.head_dim = c.head_dim;
  query.page_rows = c.page_rows;
  query.scale = static_cast<float>(1 / std::sqrt(static_cast<double>(c.head_dim)));
  query.rows = std::ssize(c.row_lengths());
  query.sequences = std::ssize(c.keys);
  query.pages = c.pages();
  query.max_pages = c.max_pages();
  query.appends = c.appends;
  query.window = c.window;
  query.rotary_dim = c.rotary_dim;
  query.has_frequencies = c.frequencies;
  query.inverse = c.inverse;
  query.qk_norm = c.qk_norm;
  query.rope_theta = static_cast<float>(theta);
  query.epsilon = static_cast<float>(epsilon);
  return query;
}

// Without functions where the plugin has none, as one of an older SDK.
PagedAttentionTable table_of(Context& context) {
  const auto& all = context.table<fvlm_attention_v1>();
  PagedAttentionTable table{};
  constexpr size_t end = offsetof(fvlm_attention_v1, forward_paged) + sizeof all.forward_paged;
  if (!FVLM_HAS(&all.base, destroy) || all.base.struct_size < end || !all.forward_paged) return table;
  return {all.base,          all.supports_paged, all.requirements_paged,
          all.prepare_paged, all.forward_paged,  all.base.struct_size < sizeof all ? 0 : all.features};
}

Trial paged_trial(const PagedCase& c) {
  Trial trial;
  trial.label =
      fmt::format("{}, {}:{} heads of {}, {} rows, sequences of {} keys in pages of {}", name_of(c.dtype), c.heads_q,
                  c.heads_kv, c.head_dim, c.row_lengths().size(), fmt::join(c.keys, " "), c.page_rows);
  trial.supports = [c](Context& context) {
    const PagedAttentionTable table = table_of(context);
    if (table.supports && c.appends && !(table.features & FVLM_ATTENTION_APPENDS))
      return fvlm_support{sizeof(fvlm_support), 0, "features lacks FVLM_ATTENTION_APPENDS"};
    if (table.supports && c.window > 0 && !(table.features & FVLM_ATTENTION_WINDOWS))
      return fvlm_support{sizeof(fvlm_support), 0, "features lacks FVLM_ATTENTION_WINDOWS"};
    if (table.supports) return query_support(table.supports, query_of(c, context.device));
    fvlm_support none{sizeof none, 0, "it has no attention over pages"};
    return none;
  };
  trial.run = [c](Context& context, const Variation& variation) {
    const PagedAttentionTable table = table_of(context);
    const PagedNumbers n = numbers_of(c);
    Workbench bench(context, variation);
    if (!bench.begin(table, query_of(c, context.device))) return bench.finish();
    fvlm_paged_attention call{};
    call.q = bench.input("q", n.q).abi();
    call.k_pages = (c.appends ? bench.updated("k_pages", n.k) : bench.input("k_pages", n.k)).abi();
    call.v_pages = (c.appends ? bench.updated("v_pages", n.v) : bench.input("v_pages", n.v)).abi();
    call.page_table = bench.input("page_table", n.table, Rows::contiguous).abi();
    call.sequences = bench.input("sequences", n.sequences, Rows::contiguous).abi();
    call.lengths = bench.input("lengths", n.lengths, Rows::contiguous).abi();
    call.out = bench.output("out", n.q.sizes(), c.dtype).abi();
    if (c.appends) {
      call.k = bench.input("k", n.own_k).abi();
      call.v = bench.input("v", n.own_v).abi();
      if (c.qk_norm && c.norm_weights) {
        call.q_norm = bench.input("q_norm", n.q_norm, Rows::contiguous).abi();
        call.k_norm = bench.input("k_norm", n.k_norm, Rows::contiguous).abi();
      }
      if (c.frequencies) call.frequencies = bench.input("frequencies", n.frequencies, Rows::contiguous).abi();
    }
    bench.call("forward_paged", bench.required().forward_workspace, table.forward, call);
    return bench.finish();
  };
  trial.expect = once([c] {
    const PagedNumbers n = numbers_of(c);
    const double scores = std::sqrt(static_cast<double>(c.head_dim)) * c.magnitude;
    if (!c.appends)
      return Expectation{{"out", formula(c, n, at::kDouble), formula(c, n, c.dtype), c.dtype,
                          scores / std::sqrt(static_cast<double>(c.head_dim))}};
    const PagedNumbers exact = appended(c, n, at::kDouble), naive = appended(c, n, c.dtype);
    return Expectation{{"out", formula(c, exact, at::kDouble), formula(c, naive, c.dtype), c.dtype,
                        scores / std::sqrt(static_cast<double>(c.head_dim))},
                       {"k_pages", exact.k, naive.k, c.dtype},
                       {"v_pages", exact.v, naive.v, c.dtype}};
  });
  return trial;
}

Outcome paged(Context& context, std::vector<PagedCase> cases, const Variation& variation = {}) {
  const auto dtype = first_supported_dtype(context, [](auto type) { return paged_trial({.dtype = type}); });
  for (PagedCase& one : cases) one.dtype = dtype;
  return expect_correct(context, trials_of(cases, paged_trial), variation);
}

template <at::ScalarType dtype>
Outcome paged_numbers(Context& context) {
  return expect_correct(
      context,
      trials_of(
          std::vector<PagedCase>{{.dtype = dtype},
                                 {.dtype = dtype, .heads_q = 9, .heads_kv = 3, .keys = {200, 1, 64, 65}, .seed = 2}},
          paged_trial));
}

Outcome paged_pages(Context& context) {
  return paged(context, {{.keys = {40, 90, 33}, .shared = 2, .spoils_unseen = true},
                         {.page_rows = 32, .keys = {100, 32, 33}, .spoils_unseen = true},
                         {.page_rows = 64, .keys = {64, 128, 1}, .shared = 1, .spoils_unseen = true}});
}

Outcome paged_padding(Context& context) {
  return paged(context, {{.sequences = {0, -5, 2, 1 << 30, 1}, .lengths = {40, 0, 33, 0, 7}, .spoils_unseen = true},
                         {.sequences = {-1, -1}, .lengths = {0, 0}, .spoils_unseen = true}});
}

// Rows of a prompt of sequence 1, a few at a time, between rows of others; padding; several prompts of which each ends
// within 16 rows of the next one.
Outcome paged_prompts(Context& context) {
  PagedCase prompt{.heads_q = 6, .heads_kv = 2, .keys = {30, 150, 9}, .shared = 0, .spoils_unseen = true};
  prompt.sequences = {0};
  prompt.lengths = {30};
  for (int32_t key = 1; key <= 150; ++key) prompt.sequences.push_back(1), prompt.lengths.push_back(key);
  prompt.sequences.push_back(2), prompt.lengths.push_back(9);
  PagedCase later = prompt;
  later.sequences = {1, 1, 1, 0, 1, 1};
  later.lengths = {100, 101, 102, 30, 20, 3};
  PagedCase padded = prompt;
  for (size_t row = 5; row < padded.lengths.size(); row += 7) padded.sequences[row] = -5, padded.lengths[row] = 0;
  PagedCase several{.heads_q = 2, .heads_kv = 2, .keys = {37, 70, 5, 90}, .shared = 1, .spoils_unseen = true};
  for (int32_t s = 0; s < 4; ++s)
    for (int32_t key = s == 3 ? 41 : 1; key <= several.keys[static_cast<size_t>(s)]; ++key)
      several.sequences.push_back(s), several.lengths.push_back(key);
  PagedCase large = several;
  large.magnitude = 300;
  std::vector<PagedCase> all;
  const auto first = first_supported_dtype(context, [](auto type) { return paged_trial({.dtype = type}); });
  for (const auto dtype : std::set{first, at::kBFloat16, at::kHalf})
    for (PagedCase one : {prompt, later, padded, several, large}) {
      one.dtype = dtype;
      if (refusal(context, paged_trial(one)).empty()) all.push_back(one);
    }
  return expect_correct(context, trials_of(all, paged_trial));
}

Outcome paged_groups(Context& context) {
  std::vector<PagedCase> cases;
  for (const auto& [heads_q, heads_kv] : {std::pair(1, 1), {5, 5}, {6, 2}, {9, 3}, {8, 1}, {7, 1}, {32, 8}, {20, 2}})
    cases.push_back({.heads_q = heads_q, .heads_kv = heads_kv, .keys = {50, 3}});
  return paged(context, cases);
}

Outcome paged_head_dims(Context& context) {
  std::vector<PagedCase> cases;
  for (const int head_dim : {8, 16, 24, 32, 56, 80, 96, 120, 128})
    cases.push_back({.heads_q = 3, .heads_kv = 1, .head_dim = head_dim, .keys = {50, 3}});
  return paged(context, cases);
}

Outcome paged_wider_heads(Context& context) {
  std::vector<PagedCase> cases;
  for (const int head_dim : {129, 136, 192, 256, 320, 512})
    for (const int heads : {1, 3, 8})
      for (const auto type : {at::kFloat, at::kBFloat16, at::kHalf})
        cases.push_back({.dtype = type, .heads_q = heads, .heads_kv = 1, .head_dim = head_dim, .keys = {50, 3, 700}});
  std::erase_if(cases, [&](const PagedCase& one) { return !refusal(context, paged_trial(one)).empty(); });
  if (cases.empty()) return not_applicable("supports_paged() takes none of 129, 136, 192, 256, 320 and 512");
  return expect_correct(context, trials_of(cases, paged_trial));
}

Outcome paged_lengths(Context& context) {
  std::vector<PagedCase> cases;
  for (const int64_t keys : {127, 129, 513, 1025, 4099})
    cases.push_back({.heads_q = 3, .heads_kv = 1, .head_dim = 16, .keys = {keys, 5, keys / 2}});
  cases.push_back({.heads_q = 2, .heads_kv = 1, .head_dim = 16, .keys = std::vector<int64_t>(70, 40)});
  return paged(context, cases);
}

Outcome paged_windows(Context& context) {
  std::vector<PagedCase> cases;
  for (const int window : {1, 16, 33, 600})
    for (const bool appends : {false, true})
      for (const auto type : {at::kFloat, at::kBFloat16})
        cases.push_back({.dtype = type,
                         .heads_q = 4,
                         .heads_kv = 2,
                         .keys = {50, 3, 700, 4099},
                         .appends = appends,
                         .window = window,
                         .spoils_unseen = !appends});
  std::erase_if(cases, [&](const PagedCase& one) { return !refusal(context, paged_trial(one)).empty(); });
  if (cases.empty()) return not_applicable(refusal(context, paged_trial({.window = 16})));
  PagedCase prompt = cases.front(); // rows of one sequence, side by side
  prompt.window = 16, prompt.appends = false;
  prompt.sequences = std::vector<int32_t>(70, 2);
  for (int32_t row = 0; row < 70; ++row) prompt.lengths.push_back(row + 1);
  cases.push_back(prompt);
  return expect_correct(context, trials_of(cases, paged_trial));
}

Outcome paged_zero_rows(Context& context) {
  PagedCase none{.keys = {5}};
  none.sequences = {};
  none.lengths = {};
  none.keys = {};
  return paged(context, {none});
}

Outcome paged_large_scores(Context& context) {
  return paged(context, {{.keys = {70, 33}, .magnitude = 300}});
}

Outcome paged_captured(Context& context) {
  if (context.device.is_cpu()) return not_applicable("there are no graphs on a CPU");
  return paged(context, {{.heads_q = 9, .heads_kv = 3, .keys = {200, 40, 33}}}, {.captured = true});
}

// In steps of decoding: rows of sequences in any order, padding between them; a row that begins a page, or a sequence.
Outcome paged_append(Context& context, bool captured) {
  const auto dtype =
      first_supported_dtype(context, [](auto type) { return paged_trial({.dtype = type, .appends = true}); });
  if (const std::string no = refusal(context, paged_trial({.dtype = dtype, .appends = true})); !no.empty())
    return not_applicable(no);
  std::vector<PagedCase> cases{
      {.rotary_dim = 64},
      {.heads_q = 9, .heads_kv = 3, .keys = {200, 1, 64, 65}, .shared = 1, .rotary_dim = 64, .seed = 2},
      {.keys = {50, 33, 18}, .sequences = {2, -5, 0, 1 << 30, 1}, .lengths = {17, 0, 49, 0, 33}, .rotary_dim = 64},
      {.heads_q = 8, .heads_kv = 1, .head_dim = 128, .keys = {40, 300}, .qk_norm = true, .rotary_dim = 128},
      {.heads_q = 4, .heads_kv = 1, .head_dim = 256, .keys = {40, 300}, .qk_norm = true, .rotary_dim = 256},
      {.heads_q = 3, .heads_kv = 1, .head_dim = 512, .keys = {40, 300}, .qk_norm = true, .rotary_dim = 256},
      {.heads_q = 3, .heads_kv = 1, .head_dim = 192, .keys = {40, 300}, .frequencies = true, .rotary_dim = 192},
      {.heads_q = 4, .heads_kv = 2, .inverse = true, .qk_norm = true, .norm_weights = false, .rotary_dim = 64},
      {.head_dim = 96, .keys = {513, 20}, .frequencies = true, .rotary_dim = 32},
      {.heads_q = 5, .heads_kv = 5, .head_dim = 16, .keys = std::vector<int64_t>(70, 40), .rotary_dim = 0},
      {.heads_q = 3, .heads_kv = 1, .head_dim = 16, .keys = {4099, 5}, .rotary_dim = 16}};
  cases[1].keys = {200, 17, 64, 65};
  for (PagedCase& one : cases) one.appends = true;
  std::vector<PagedCase> all;
  for (const auto type : {dtype, at::kBFloat16})
    for (PagedCase one : cases) {
      one.dtype = type;
      if (refusal(context, paged_trial(one)).empty()) all.push_back(one);
    }
  return expect_correct(context, trials_of(all, paged_trial), {.captured = captured});
}

Outcome paged_appends(Context& context) {
  return paged_append(context, false);
}

Outcome paged_append_captured(Context& context) {
  if (context.device.is_cpu()) return not_applicable("there are no graphs on a CPU");
  return paged_append(context, true);
}

Outcome paged_nonsense(Context& context) {
  const PagedAttentionTable table = table_of(context);
  if (!table.supports) return not_applicable("it has no attention over pages");
  PagedCase good{.dtype = first_supported_dtype(context, [](auto type) { return paged_trial({.dtype = type}); })};
  InvalidQueries<fvlm_paged_attention_query> nonsense;
  nonsense.add_usual(query_of(good, context.device), &fvlm_paged_attention_query::dtype);
  nonsense.add("with 3 query heads on 2 key heads", query_of(good, context.device), [](auto& q) { q.heads_q = 3; });
  return nonsense.refused_by(table.supports);
}

} // namespace

std::vector<Check> paged_attention_checks() {
  const std::string plain = "paged_float*,paged_bfloat16";
  return {
      {"paged_float32", "attention over pages agrees with float64, in float32", paged_numbers<at::kFloat>},
      {"paged_bfloat16", "attention over pages agrees with float64, in bfloat16", paged_numbers<at::kBFloat16>},
      {"paged_float16", "attention over pages agrees with float64, in float16", paged_numbers<at::kHalf>},
      {"paged_pages", "pages of any order and size, some shared; NaN where no row looks", paged_pages, plain},
      {"paged_padding", "rows of length 0 give 0", paged_padding, plain + ",paged_pages"},
      {"paged_prompts", "many rows of one sequence, between rows of others", paged_prompts, plain + ",paged_pages"},
      {"paged_groups", "query heads share key heads in order", paged_groups, plain},
      {"paged_head_dims", "head_dim 8 to 128", paged_head_dims, plain},
      {"paged_wider_heads", "head_dim up to 512, as far as supports_paged() says yes", paged_wider_heads, plain},
      {"paged_lengths", "sequences of up to 4099 keys, and many sequences", paged_lengths, plain},
      {"paged_windows", "rows that attend to the last keys alone, where features say so", paged_windows,
       plain + ",paged_lengths"},
      {"paged_zero_rows", "no rows at all", paged_zero_rows, plain},
      {"paged_large_scores", "scores in the thousands do not overflow", paged_large_scores, plain},
      {"paged_captured", "replayed from a CUDA graph", paged_captured, plain},
      {"paged_append", "norm, rotation and writing of the rows' keys along with the attention, where features say so",
       paged_appends, plain},
      {"paged_append_captured", "the same, replayed from a CUDA graph", paged_append_captured, plain + ",paged_append"},
      {"paged_nonsense", "supports_paged() refuses impossible queries", paged_nonsense},
  };
}

} // namespace fvlm::check
