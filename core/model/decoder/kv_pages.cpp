#include "model/decoder/kv_pages.h"

#include "base/error.h"
#include "model/size_class.h"

#include <ATen/ops/tensor.h>
#include <fmt/format.h>

#include <algorithm>
#include <bit>

namespace fvlm::model {

void PassRows::append(int64_t token, int64_t position) {
  const auto page = static_cast<size_t>(position / page_rows);
  if (page >= pages.back().size())
    throw Error(ErrorKind::internal, fmt::format("row {} of a sequence that has {} pages of {} rows", position,
                                                 pages.back().size(), page_rows));
  tokens.push_back(static_cast<int32_t>(token));
  positions.push_back(static_cast<int32_t>(position));
  places.push_back(static_cast<int32_t>(pages.back()[page] * page_rows + position % page_rows));
  sequences.push_back(static_cast<int32_t>(pages.size() - 1));
}

StagedRows::StagedRows(const PassRows& rows, at::Device device, int64_t padded) {
  size_t longest = 1;
  for (const auto& pages : rows.pages) longest = std::max(longest, pages.size());
  const int64_t count = padded > 0 ? padded : row_class(rows.size()), out = row_class(std::ssize(rows.outputs)),
                sequence_count = row_class(std::ssize(rows.pages)),
                table_width = static_cast<int64_t>(std::bit_ceil(longest));
  // Padded with zeros, which is the padding page's first row where they are places. Each tensor begins at a multiple of
  // 256 bytes, as an allocation of its own would.
  constexpr size_t alignment = 64;
  std::vector<int32_t> all;
  const auto append = [&](const std::vector<int32_t>& values, int64_t size) {
    all.insert(all.end(), values.begin(), values.end());
    all.resize(all.size() + static_cast<size_t>(size) - values.size());
  };
  const auto align = [&] { all.resize((all.size() + alignment - 1) / alignment * alignment); };
  std::vector<int32_t> keys;
  keys.reserve(rows.positions.size());
  for (const int32_t position : rows.positions) keys.push_back(position + 1);
  for (const std::vector<int32_t>* values :
       {&rows.tokens, &rows.positions, &rows.sequences, &std::as_const(keys), &rows.places})
    append(*values, count), align();
  append(rows.outputs, out), align();
  for (const auto& pages : rows.pages) append(pages, table_width);
  append({}, (sequence_count - std::ssize(rows.pages)) * table_width);

  const at::Tensor staged = at::tensor(all, at::kInt).to(device);
  int64_t begin = 0;
  const auto next = [&](int64_t size) {
    const at::Tensor tensor = staged.narrow(0, begin, size);
    begin += (size + int64_t{alignment} - 1) / int64_t{alignment} * int64_t{alignment};
    return tensor;
  };
  tokens = next(count);
  positions = next(count);
  sequences = next(count);
  lengths = next(count);
  places = next(count).to(at::kLong);
  outputs = next(out);
  page_table = next(sequence_count * table_width).view({sequence_count, table_width});
}

} // namespace fvlm::model
