// Attention over pages in plain ATen: the pages of a few rows at a time are gathered, and one masked softmax follows.
// Suffixes name dimensions: R rows, K key heads, G query heads for each key head, M keys, D head_dim.
#include "ops/reference/common.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/einsum.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/where.h>

#include <algorithm>
#include <limits>

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

Tensor attend(const fvlm_paged_attention_query& query, const PagesOfRows& of, const Tensor& q, const Tensor& k_pages,
              const Tensor& v_pages) {
  const Tensor hidden = of.visible_RM.logical_not();
  const Tensor is_padding = hidden.all(1);
  const Tensor q_RKGD = at::where(is_padding.view({-1, 1, 1}), 0, upcast(q))
                            .mul(query.scale)
                            .view({q.size(0), query.heads_kv, -1, query.head_dim});
  const Tensor scores = at::einsum("rkgd,rmkd->rkgm", {q_RKGD, of.gathered(k_pages)});
  scores.masked_fill_(hidden.unsqueeze(1).unsqueeze(2), -std::numeric_limits<double>::infinity());
  const Tensor weights = at::softmax(scores, -1).masked_fill(is_padding.view({-1, 1, 1, 1}), 0);
  return at::einsum("rkgm,rmkd->rkgd", {weights, of.gathered(v_pages)}).reshape(q.sizes());
}

} // namespace

sdk::Support Attention::supports_paged(const PagedQuery& query) {
  if (query.heads_kv < 1 || query.heads_q % query.heads_kv != 0)
    return sdk::refuse("%d query heads over %d key heads", query.heads_q, query.heads_kv);
  return supports_number(query.device, query.dtype, "ATen, one masked softmax");
}

void Attention::forward_paged(const fvlm_call&, const PagedQuery& query, const Paged& arguments) {
  const Tensor out = torch_tensor(arguments.out);
  const int64_t keys = query.max_pages * query.page_rows;
  if (query.sequences == 0 || query.pages == 0 || keys == 0 || out.numel() == 0) {
    out.zero_();
    return;
  }
  const Tensor q = torch_tensor(arguments.q), sequences = torch_tensor(arguments.sequences),
               lengths = torch_tensor(arguments.lengths);
  for (int64_t first = 0; first < query.rows; first += rows_at_once) {
    const int64_t count = std::min(rows_at_once, query.rows - first);
    const auto rows = [&](const Tensor& x) { return x.narrow(0, first, count); };
    const auto pages = pages_of(query, torch_tensor(arguments.page_table), rows(sequences), rows(lengths));
    store(rows(out), attend(query, pages, rows(q), torch_tensor(arguments.k_pages), torch_tensor(arguments.v_pages)));
  }
}

} // namespace fvlm::ops::reference
