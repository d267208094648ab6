#include "ops/row_chunks.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/bucketize.h>
#include <ATen/ops/full.h>
#include <ATen/ops/where.h>

#include <algorithm>
#include <bit>

namespace fvlm::ops {
namespace {

constexpr int64_t longest_chunk = 64;

int64_t chunks_of(int64_t rows, int64_t length) {
  return (rows + length - 1) / length;
}

} // namespace

RowChunks::RowChunks(const at::Tensor& cu_seqlens, int64_t all_rows, int64_t longest) {
  const int64_t segments = cu_seqlens.size(0) - 1;
  longest = std::clamp<int64_t>(longest, 1, std::max<int64_t>(all_rows, 1));
  length = std::min(longest_chunk, static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(longest))));
  const int64_t ranks = chunks_of(longest, length);
  count = std::min(segments * ranks, all_rows / length + segments) + 1;
  const auto options = cu_seqlens.options().dtype(at::kLong);
  const at::Tensor bounds = cu_seqlens.to(at::kLong).clamp_max(all_rows), begins = bounds.narrow(0, 0, segments);
  const at::Tensor chunks = (bounds.narrow(0, 1, segments) - begins + (length - 1)).div(length, "floor");
  const at::Tensor first_chunk = chunks.cumsum(0) - chunks;
  const at::Tensor each = at::arange(all_rows, options);
  // Segments lie one behind the other; the last bound that is not behind a row begins its own, or what follows all.
  const at::Tensor segment = at::bucketize(each, bounds, /*out_int32=*/false, /*right=*/true) - 1;
  const at::Tensor known = segment.clamp(0, segments - 1), nowhere = segment.ge(segments);
  const at::Tensor index = each - begins.index_select(0, known);
  places = (first_chunk.index_select(0, known) * length + index).masked_fill_(nowhere, (count - 1) * length);
  rows = at::full({count * length}, all_rows, options);
  rows.scatter_(0, places, each);
  rows.narrow(0, (count - 1) * length, length).fill_(all_rows);
  empty = rows.ge(all_rows);
  rows.clamp_(0, std::max<int64_t>(all_rows - 1, 0));
  const at::Tensor rank = at::arange(ranks, options).unsqueeze(1);
  by_rank = at::where(rank.lt(chunks), first_chunk + rank, at::full({}, count - 1, options));
}

at::Tensor RowChunks::split(const at::Tensor& of_rows) const {
  std::vector<int64_t> sizes = of_rows.sizes().vec(), of_places(sizes.size(), 1);
  of_places.front() = empty.size(0);
  const at::Tensor taken = of_rows.index_select(0, rows).masked_fill_(empty.view(of_places), 0);
  sizes.front() = length;
  sizes.insert(sizes.begin(), count);
  return taken.view(sizes);
}

at::Tensor RowChunks::joined(const at::Tensor& chunks) const {
  chunks.select(0, count - 1).zero_();
  return chunks.flatten(0, 1).index_select(0, places);
}

} // namespace fvlm::ops
