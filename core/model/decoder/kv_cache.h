// KvCache: the keys and values of several sequences, side by side in one buffer for each layer.
#pragma once
#include "model/part.h"

#include <vector>

namespace fvlm::model {

// Sequence i has the rows from i * capacity, of which the first lengths[i] are written. So the buffers keep their sizes
// while sequences grow, end, and make room for others.
struct KvCache {
  std::vector<at::Tensor> layers; // [sequences * capacity, 2 * kv_heads * head_dim]: keys, then values
  int64_t capacity = 0;           // rows of each sequence
  std::vector<int64_t> lengths;
};

// The next rows of a cache's sequences, one sequence after the other, maybe with padding behind the last.
struct AppendedRows {
  // Segment 2 i is sequence i: its new rows, and all that it has then. Those between are rows of the cache that are not
  // in use, and have no queries.
  Segments of_q, of_kv;
  at::Tensor positions; // int32 [rows and padding]: in the sequence
  at::Tensor places;    // int64 [rows]: of the cache
};
// `rows`: how many each sequence gets, of 0 or more; `padded`: their sum, with padding.
AppendedRows appended_rows(const KvCache& cache, const std::vector<int64_t>& rows, int64_t padded, at::Device device);

} // namespace fvlm::model
