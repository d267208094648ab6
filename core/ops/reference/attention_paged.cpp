// Attention over pages in plain ATen: the pages of a few rows at a time are gathered, and one masked softmax follows.
// Suffixes name dimensions: R rows, K key heads, G query heads for each key head, M keys, D head_dim.
#include "ops/reference/attention.h"
#include "ops/reference/common.h"

#include <ATen/core/List.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/concat.h>
#include <ATen/ops/einsum.h>
#include <ATen/ops/index.h>
#include <ATen/ops/minimum.h>
#include <ATen/ops/rsqrt.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros_like.h>

#include <algorithm>
#include <limits>
#include <vector>

namespace fvlm::ops::reference {
namespace {

using at::Tensor;

constexpr int64_t rows_at_once = 32; // bounds the memory of the gathered keys

struct PagesOfRows {
  Tensor table_RP; // page numbers of each row's sequence, all of which exist
  Tensor visible_RM;

  // Of pages [pages, page_rows, K, D]: [R, M, K, D], with zeros where a row sees no key, since a page may hold NaN
  // there.
  Tensor gathered(const Tensor& pages) const {
    const Tensor all = pages.index_select(0, table_RP.flatten());
    const Tensor rows = all.view({table_RP.size(0), -1, pages.size(2), pages.size(3)});
    return at::where(visible_RM.unsqueeze(2).unsqueeze(3), upcast(rows), 0);
  }
};

PagesOfRows pages_of(const fvlm_paged_attention_query& query, const Tensor& page_table, const Tensor& sequences,
                     const Tensor& lengths) {
  // Entries without content may be any number.
  const Tensor of_row = page_table.index_select(0, sequences.clamp(0, query.sequences - 1)).clamp(0, query.pages - 1);
  const Tensor key = at::arange(query.max_pages * query.page_rows, lengths.options());
  return {of_row, key.unsqueeze(0).lt(lengths.unsqueeze(1))};
}

// The pages that windows of this many keys, from the first one of each row on, may lie in, or all where rows attend to
// others besides.
PagesOfRows pages_in_window(const PagedKeys& keys, const Tensor& sequences, const Tensor& lengths,
                            const Tensor& first_key, int64_t window) {
  const int64_t page_rows = keys.k_pages.size(1), max_pages = keys.page_table.size(1),
                of_window = std::min(max_pages, (window + page_rows - 2) / page_rows + 1),
                count = keys.has_ranges ? max_pages : of_window;
  const Tensor page_RP = first_key.floor_divide(page_rows).unsqueeze(1) + at::arange(count, lengths.options());
  const Tensor of_row = keys.page_table.index_select(0, sequences.clamp(0, keys.page_table.size(0) - 1))
                            .gather(1, page_RP.clamp_max(max_pages - 1).to(at::kLong))
                            .clamp(0, keys.k_pages.size(0) - 1);
  const Tensor key_RM = (page_RP.unsqueeze(2) * page_rows + at::arange(page_rows, lengths.options())).flatten(1);
  return {of_row, key_RM.ge(first_key.unsqueeze(1)) & key_RM.lt(lengths.unsqueeze(1))};
}

Tensor attend(double scale, const PagesOfRows& of, const Tensor& q, const Tensor& k_pages, const Tensor& v_pages,
              double softcap = 0) {
  const Tensor hidden = of.visible_RM.logical_not();
  const Tensor is_padding = hidden.all(1);
  const Tensor q_RKGD =
      at::where(is_padding.view({-1, 1, 1}), 0, upcast(q)).mul(scale).view({q.size(0), k_pages.size(2), -1, q.size(2)});
  const Tensor scores = at::einsum("rkgd,rmkd->rkgm", {q_RKGD, of.gathered(k_pages)});
  if (softcap > 0) scores.div_(softcap).tanh_().mul_(softcap);
  scores.masked_fill_(hidden.unsqueeze(1).unsqueeze(2), -std::numeric_limits<double>::infinity());
  const Tensor weights = at::softmax(scores, -1).masked_fill(is_padding.view({-1, 1, 1, 1}), 0);
  return at::einsum("rkgm,rmkd->rkgd", {weights, of.gathered(v_pages)}).reshape(q.sizes());
}

// The heads of q or k as they are attended with. [rows, heads, head_dim] in an accumulation type.
Tensor normed_and_rotated(const fvlm_paged_attention_query& query, const fvlm_paged_attention& arguments,
                          const fvlm_tensor* rows, const fvlm_tensor* weight, const Tensor& positions) {
  Tensor x = upcast(rows);
  if (query.qk_norm) {
    x = x * at::rsqrt(x.square().mean(-1, true) + static_cast<double>(query.epsilon));
    if (weight) x = x * upcast(weight);
  }
  if (query.rotary_dim == 0) return x;
  if (query.has_frequencies) return rotated(x, positions, torch_tensor(arguments.frequencies), query.inverse);
  return rotated(x, positions, query.rotary_dim, query.rope_theta, query.inverse);
}

// Writes the rows' keys and values to their pages, and returns the queries. Nothing is read on the host, so rows of
// padding write too: the same as a row that is none, or what is there.
Tensor append(const fvlm_paged_attention_query& query, const fvlm_paged_attention& arguments) {
  const Tensor lengths = torch_tensor(arguments.lengths).to(at::kLong), positions = lengths.sub(1).clamp_min(0);
  const Tensor is_row = lengths.gt(0);
  const Tensor writer = at::where(is_row, at::arange(query.rows, lengths.options()), is_row.to(at::kInt).argmax());
  const Tensor writes = is_row.index_select(0, writer), position = positions.index_select(0, writer),
               sequence = at::where(writes, torch_tensor(arguments.sequences).to(at::kLong).index_select(0, writer), 0),
               entry = sequence * query.max_pages + position.floor_divide(query.page_rows),
               page = at::where(writes, torch_tensor(arguments.page_table).flatten().index_select(0, entry), 0);
  const c10::List<std::optional<Tensor>> place({page.to(at::kLong), position.remainder(query.page_rows)});
  const auto write = [&](const fvlm_tensor* to, const Tensor& numbers) {
    Tensor pages = torch_tensor(to);
    const Tensor own = numbers.to(pages.scalar_type()).index_select(0, writer);
    pages.index_put_(place, at::where(writes.view({-1, 1, 1}), own, pages.index(place)));
  };
  write(arguments.k_pages, normed_and_rotated(query, arguments, arguments.k, arguments.k_norm, positions));
  write(arguments.v_pages, torch_tensor(arguments.v));
  const Tensor q = torch_tensor(arguments.q);
  return normed_and_rotated(query, arguments, arguments.q, arguments.q_norm, positions).to(q.scalar_type());
}

} // namespace

sdk::Support Attention::supports_paged(const PagedQuery& query) {
  if (query.heads_kv < 1 || query.heads_q % query.heads_kv != 0)
    return sdk::refuse("%d query heads over %d key heads", query.heads_q, query.heads_kv);
  if (appends(query) && (query.rotary_dim < 0 || query.rotary_dim % 2 != 0 || query.rotary_dim > query.head_dim))
    return sdk::refuse("rotary_dim %d of head_dim %d not supported", query.rotary_dim, query.head_dim);
  if (window_of(query) < 0) return sdk::refuse("a window of %d", window_of(query));
  return supports_number(query.device, query.dtype, "ATen, one masked softmax");
}

void Attention::forward_paged(const fvlm_call&, const PagedQuery& query, const Paged& arguments) {
  const Tensor out = torch_tensor(arguments.out);
  const int64_t keys = query.max_pages * query.page_rows;
  if (query.sequences == 0 || query.pages == 0 || keys == 0 || out.numel() == 0) {
    out.zero_();
    return;
  }
  const Tensor q = appends(query) ? append(query, arguments) : torch_tensor(arguments.q),
               sequences = torch_tensor(arguments.sequences), lengths = torch_tensor(arguments.lengths);
  const PagedKeys all{torch_tensor(arguments.k_pages), torch_tensor(arguments.v_pages),
                      torch_tensor(arguments.page_table), sequences, lengths};
  const int query_window = window_of(query);
  for (int64_t first = 0; first < query.rows; first += rows_at_once) {
    const int64_t count = std::min(rows_at_once, query.rows - first);
    const auto rows = [&](const Tensor& x) { return x.narrow(0, first, count); };
    const auto pages = query_window > 0 ? pages_in_window(all, rows(sequences), rows(lengths),
                                                          (rows(lengths) - query_window).clamp_min(0), query_window)
                                        : pages_of(query, all.page_table, rows(sequences), rows(lengths));
    store(rows(out), attend(query.scale, pages, rows(q), all.k_pages, all.v_pages));
  }
}

Tensor paged_attention_in_window(const Tensor& q, const PagedKeys& keys, const Tensor& positions, int64_t window,
                                 double scale, double softcap) {
  Tensor first_key = (positions - (window - 1)).clamp_min(0);
  if (keys.has_ranges && keys.first.defined()) first_key = at::minimum(first_key, keys.first);
  std::vector<Tensor> parts;
  for (int64_t first = 0; first < q.size(0); first += rows_at_once) {
    const auto rows = [&](const Tensor& x) { return x.narrow(0, first, std::min(rows_at_once, q.size(0) - first)); };
    const auto pages = pages_in_window(keys, rows(keys.sequences), rows(keys.lengths), rows(first_key), window);
    parts.push_back(attend(scale, pages, rows(q), keys.k_pages, keys.v_pages, softcap).to(q.scalar_type()));
  }
  return parts.empty() ? at::zeros_like(q) : at::concat(parts);
}

} // namespace fvlm::ops::reference
