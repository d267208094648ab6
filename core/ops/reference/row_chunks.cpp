#include "ops/reference/row_chunks.h"

#include "ops/tensor_bridge.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/argmax.h>
#include <ATen/ops/bucketize.h>
#include <ATen/ops/full.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <bit>

namespace fvlm::ops::reference {
namespace {

constexpr int64_t longest_chunk = 64;

int64_t chunks_of(int64_t rows, int64_t length) {
  return (rows + length - 1) / length;
}

// One of a segment's, with as many dimensions as its state.
at::Tensor by_segment(const at::Tensor& values, const at::Tensor& states) {
  std::vector<int64_t> sizes(static_cast<size_t>(states.dim()), 1);
  sizes.front() = values.size(0);
  return values.view(sizes);
}

} // namespace

RowPlaces::RowPlaces(const at::Tensor& cu_seqlens, int64_t rows) {
  const int64_t segments = cu_seqlens.size(0) - 1;
  const at::Tensor bounds = cu_seqlens.to(at::kLong).clamp_max(rows);
  begins = bounds.narrow(0, 0, segments);
  lengths = bounds.narrow(0, 1, segments) - begins;
  each = at::arange(rows, bounds.options());
  // The last bound that is not behind a row begins its segment, or what follows all.
  const at::Tensor own = at::bucketize(each, bounds, /*out_int32=*/false, /*right=*/true) - 1;
  segment = own.clamp(0, segments - 1);
  nowhere = own.ge(segments);
  index = each - begins.index_select(0, segment);
}

RowChunks::RowChunks(const RowPlaces& of_rows, int64_t longest) {
  const int64_t segments = of_rows.begins.size(0), all_rows = of_rows.each.size(0);
  longest = std::clamp<int64_t>(longest, 1, std::max<int64_t>(all_rows, 1));
  length = std::min(longest_chunk, static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(longest))));
  const int64_t ranks = chunks_of(longest, length);
  count = std::min(segments * ranks, all_rows / length + segments) + 1;
  const auto options = of_rows.each.options();
  const at::Tensor chunks = (of_rows.lengths + (length - 1)).div(length, "floor");
  const at::Tensor first_chunk = chunks.cumsum(0) - chunks;
  places = (first_chunk.index_select(0, of_rows.segment) * length + of_rows.index)
               .masked_fill_(of_rows.nowhere, (count - 1) * length);
  rows = at::full({count * length}, all_rows, options);
  rows.scatter_(0, places, of_rows.each);
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

CarriedStates::CarriedStates(const fvlm_tensor* states, const fvlm_tensor* slots, const fvlm_tensor* starts) {
  if (!states) return;
  states_ = torch_tensor(states);
  slots_ = torch_tensor(slots).to(at::kLong);
  starts_ = torch_tensor(starts).ne(0);
}

at::Tensor CarriedStates::before(int64_t segments, at::IntArrayRef sizes, const at::TensorOptions& options) const {
  if (states_.defined()) {
    const at::Tensor own = states_.index_select(0, slots_);
    return own.masked_fill_(by_segment(starts_, own), 0);
  }
  std::vector<int64_t> all{segments};
  all.insert(all.end(), sizes.begin(), sizes.end());
  return at::zeros(all, options);
}

void CarriedStates::replace(const at::Tensor& after, const RowPlaces& places) const {
  if (!states_.defined()) return;
  const at::Tensor has_rows = places.lengths.gt(0), each = at::arange(slots_.size(0), slots_.options());
  const at::Tensor kept = at::where(by_segment(has_rows, after), after, states_.index_select(0, slots_));
  // One without rows does what one with rows does, whose slot it may have, too.
  const at::Tensor from = at::where(has_rows, each, at::argmax(has_rows.to(at::kInt)));
  states_.index_copy_(0, slots_.index_select(0, from), kept.index_select(0, from));
}

} // namespace fvlm::ops::reference
