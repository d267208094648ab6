#include "model/decoder/kv_cache.h"

#include "base/error.h"
#include "model/size_class.h"

#include <ATen/ops/tensor.h>
#include <fmt/format.h>

#include <algorithm>

namespace fvlm::model {

AppendedRows appended_rows(const KvCache& cache, const std::vector<int64_t>& rows, int64_t padded, at::Device device) {
  std::vector<int64_t> positions, places, q{0}, kv{0};
  for (size_t i = 0; i < rows.size(); ++i) {
    const int64_t begin = static_cast<int64_t>(i) * cache.capacity, length = cache.lengths[i];
    if (length + rows[i] > cache.capacity)
      throw Error(ErrorKind::internal, fmt::format("{} rows for a sequence that has {} of the {} that the cache holds",
                                                   rows[i], length, cache.capacity));
    for (int64_t row = length; row < length + rows[i]; ++row) {
      positions.push_back(row);
      places.push_back(begin + row);
    }
    if (i > 0) {
      q.push_back(q.back());
      kv.push_back(begin);
    }
    q.push_back(q.back() + rows[i]);
    kv.push_back(begin + length + rows[i]);
  }
  positions.resize(static_cast<size_t>(padded));
  const auto on_device = [&](const std::vector<int64_t>& values, at::ScalarType type) {
    return at::tensor(values, type).to(device);
  };
  const int64_t longest = *std::max_element(rows.begin(), rows.end());
  return {{on_device(q, at::kInt), {}, row_class(longest)},
          {on_device(kv, at::kInt), {}, cache.capacity},
          on_device(positions, at::kInt),
          on_device(places, at::kLong)};
}

} // namespace fvlm::model
