#include "model/decoder/kv_pages.h"

#include "base/error.h"
#include "model/size_class.h"
#include "ops/pinned_memory.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <unordered_map>

namespace fvlm::model {

int64_t KvPages::bytes() const {
  size_t bytes = 0;
  for (const at::Tensor& layer : layers) bytes += layer.nbytes();
  for (const auto& layer : states)
    for (const at::Tensor& state : layer) bytes += state.nbytes();
  return static_cast<int64_t>(bytes);
}

void PassRows::append(int64_t token, int64_t position, const RowPosition& along, int64_t last, int64_t first_row) {
  const auto page = static_cast<size_t>(position / page_rows);
  if (page >= pages.back().size())
    throw Error(ErrorKind::internal, "row {} of a sequence that has {} pages of {} rows", position, pages.back().size(),
                page_rows);
  tokens.push_back(static_cast<int32_t>(token));
  positions.push_back(static_cast<int32_t>(position));
  lengths.push_back(static_cast<int32_t>(last + 1));
  first.push_back(static_cast<int32_t>(first_row));
  has_ranges = has_ranges || last > position || first_row < position;
  for (size_t axis = 0; axis < rotary.size(); ++axis) rotary[axis].push_back(along[axis]);
  has_axes = has_axes || !are_equal(along);
  places.push_back(static_cast<int32_t>(pages.back()[page] * page_rows + position % page_rows));
  sequences.push_back(static_cast<int32_t>(pages.size() - 1));
}

bool PassRows::are_independent() const {
  if (pages.size() != tokens.size() || has_axes || rotary[0] != positions) return false;
  // By page: the sequence whose row is written there.
  std::unordered_map<int32_t, size_t> writers;
  for (size_t row = 0; row < tokens.size(); ++row) {
    if (static_cast<size_t>(sequences[row]) != row) return false;
    writers.emplace(static_cast<int32_t>(places[row] / page_rows), row);
  }
  for (size_t sequence = 0; sequence < pages.size(); ++sequence)
    for (const int32_t page : pages[sequence])
      if (const auto writer = writers.find(page); writer != writers.end() && writer->second != sequence) return false;
  return true;
}

int64_t PassRows::longest_run() const {
  int64_t longest = 0;
  for (size_t sequence = 0; sequence < begins.size(); ++sequence)
    longest = std::max(longest, (sequence + 1 < begins.size() ? begins[sequence + 1] : size()) - begins[sequence]);
  return longest;
}

namespace {

// Each tensor begins at a multiple of 256 bytes, as an allocation of its own would.
constexpr int64_t alignment = 64;

int64_t aligned(int64_t size) {
  return (size + alignment - 1) / alignment * alignment;
}

// In memory that `device` can copy from by itself. Padded with zeros, which is the padding page's first row where they
// are places.
at::Tensor listed(const PassRows& rows, const StagedRows::Sizes& sizes, at::Device device) {
  std::vector<int32_t> all;
  const auto append = [&](const std::vector<int32_t>& values, int64_t size) {
    all.insert(all.end(), values.begin(), values.end());
    all.resize(all.size() + static_cast<size_t>(size) - values.size());
  };
  const auto align = [&] { all.resize(static_cast<size_t>(aligned(std::ssize(all)))); };
  std::vector<int32_t> pages_of_places, rows_of_places; // int64, the low half first
  for (const int32_t place : rows.places) {
    pages_of_places.insert(pages_of_places.end(), {static_cast<int32_t>(place / rows.page_rows), 0});
    rows_of_places.insert(rows_of_places.end(), {static_cast<int32_t>(place % rows.page_rows), 0});
  }
  append(rows.tokens, sizes.rows), align();
  for (size_t axis = 0; axis < (sizes.has_axes ? rows.rotary.size() : 1); ++axis)
    append(rows.rotary[axis], sizes.rows), align();
  append(rows.sequences, sizes.rows), align();
  append(rows.lengths, sizes.rows), align();
  if (sizes.has_ranges)
    for (const auto* each : {&rows.first, &rows.positions}) append(*each, sizes.rows), align();
  for (const auto* halves : {&pages_of_places, &rows_of_places}) append(*halves, 2 * sizes.rows), align();
  append(rows.outputs, sizes.outputs), align();
  if (sizes.mixed) {
    std::vector<int32_t> adapters;
    for (const int32_t sequence : rows.sequences) adapters.push_back(rows.adapters[static_cast<size_t>(sequence)]);
    append(adapters, sizes.rows), align();
  }
  for (const auto& pages : rows.pages) append(pages, sizes.pages);
  append({}, (sizes.sequences - std::ssize(rows.pages)) * sizes.pages);
  if (sizes.longest_run > 0) {
    std::vector<int32_t> bounds = rows.begins, starts;
    bounds.resize(static_cast<size_t>(sizes.sequences + 1), static_cast<int32_t>(rows.size()));
    for (const int32_t begin : rows.begins) starts.push_back(rows.positions.at(static_cast<size_t>(begin)) == 0);
    align(), append(bounds, sizes.sequences + 1), align();
    append(rows.slots, sizes.sequences), align();
    append(starts, sizes.sequences), align();
  }
  at::Tensor list = at::empty({std::ssize(all)}, at::TensorOptions().dtype(at::kInt).pinned_memory(device.is_cuda()));
  std::copy(all.begin(), all.end(), list.data_ptr<int32_t>());
  return list;
}

int64_t rounded_up(int64_t size, int64_t least, int64_t factor) {
  while (least < size) least *= factor;
  return least;
}

// Sequences of one row each are computed otherwise than longer ones, which take a time that grows with the longest.
int64_t padded_run(const PassRows& rows, int64_t padded_rows) {
  const int64_t longest = rows.has_states ? rows.longest_run() : 0;
  return longest > 1 ? std::min(rounded_up(longest, 16, 2), padded_rows) : longest;
}

} // namespace

StagedRows::Sizes StagedRows::Sizes::of(const PassRows& rows, int64_t padded) {
  size_t longest = 1;
  for (const auto& pages : rows.pages) longest = std::max(longest, pages.size());
  const int64_t padded_rows = padded > 0 ? padded : row_class(rows.size());
  return {padded_rows,
          row_class(std::ssize(rows.outputs)),
          row_class(std::ssize(rows.pages)),
          static_cast<int64_t>(std::bit_ceil(longest)),
          rows.are_independent(),
          rows.has_axes,
          rows.has_ranges,
          padded_run(rows, padded_rows),
          rows.are_mixed()};
}

StagedRows::Sizes StagedRows::Sizes::coarse(const PassRows& rows) {
  const Sizes sizes = of(rows);
  const int64_t sequences = rounded_up(std::max(std::ssize(rows.pages), std::ssize(rows.outputs)), 16, 4),
                padded_rows = rows.size() > 2048 ? sizes.rows : rounded_up(rows.size(), 64, 2);
  return {padded_rows,           sequences,      sequences,        rounded_up(sizes.pages, 16, 2),
          /*independent=*/false, sizes.has_axes, sizes.has_ranges, padded_run(rows, padded_rows),  sizes.mixed};
}

StagedRows::StagedRows(const PassRows& rows, at::Device device, const Sizes& sizes)
    : sizes_(sizes), memory_(listed(rows, sizes_, device).to(device, at::kInt, true)) {
  int64_t begin = 0;
  const auto next = [&](int64_t size) {
    at::Tensor tensor = memory_.narrow(0, begin, size);
    begin += aligned(size);
    return tensor;
  };
  tokens = next(sizes_.rows);
  const at::Tensor on_first_axis = next(sizes_.rows);
  positions = on_first_axis;
  if (sizes_.has_axes) {
    const at::Tensor second = next(sizes_.rows);
    positions = on_first_axis.as_strided({most_row_axes, sizes_.rows},
                                         {second.storage_offset() - on_first_axis.storage_offset(), 1});
    for (size_t axis = 2; axis < most_row_axes; ++axis) (void)next(sizes_.rows);
  }
  sequences = next(sizes_.rows);
  lengths = next(sizes_.rows);
  if (sizes_.has_ranges) first = next(sizes_.rows), indices_ = next(sizes_.rows);
  const at::Tensor their_pages = next(2 * sizes_.rows).view(at::kLong);
  places = their_pages.as_strided({2, sizes_.rows}, {aligned(2 * sizes_.rows) / 2, 1});
  (void)next(2 * sizes_.rows);
  outputs = next(sizes_.outputs);
  if (sizes_.mixed) adapters = next(sizes_.rows);
  page_table = next(sizes_.sequences * sizes_.pages).view({sizes_.sequences, sizes_.pages});
  if (sizes_.longest_run == 0) return;
  row_bounds = next(sizes_.sequences + 1);
  slots = next(sizes_.sequences);
  starts = next(sizes_.sequences);
}

at::Tensor StagedRows::indices() const {
  return sizes_.has_ranges ? indices_ : lengths - 1;
}

void StagedRows::restage(const PassRows& rows) {
  const at::Tensor list = listed(rows, sizes_, memory_.device());
  constexpr int64_t few_bytes = 64 << 10;
  if (list.nbytes() <= few_bytes)
    ops::copy_by_kernel(memory_, list);
  else
    memory_.copy_(list, /*non_blocking=*/true);
}

} // namespace fvlm::model
