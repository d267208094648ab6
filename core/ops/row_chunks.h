// Rows of segments in chunks of one length, for operations that compute within all chunks at once and then go from
// chunk to chunk of all segments together. A segment's last chunk may have places without a row.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>

namespace fvlm::ops {

struct RowChunks {
  // cu_seqlens: int32 [segments + 1] on the device, see Segments; `longest`: upper bound of a segment's rows.
  RowChunks(const at::Tensor& cu_seqlens, int64_t rows, int64_t longest);

  // [rows, ...] -> [chunks, length, ...], zeros where there is no row.
  at::Tensor split(const at::Tensor& rows) const;
  // Back again, into [rows, ...]; zeros for rows of no segment. The content of the empty chunk is overwritten.
  at::Tensor joined(const at::Tensor& chunks) const;

  int64_t length;     // a power of two
  int64_t count;      // with one more behind all others, which is empty
  at::Tensor rows;    // int64 [count * length]: the row of each place, any where there is none
  at::Tensor empty;   // bool [count * length]: whether there is none
  at::Tensor places;  // int64 [rows]: where each row is; in the empty chunk if it is of no segment
  at::Tensor by_rank; // int64 [most chunks of a segment, segments]: its chunk of that rank, or the empty one
};

} // namespace fvlm::ops
