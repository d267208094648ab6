// Rows of segments, for the operations that carry a state from row to row.
#pragma once
#include <fvlm/tensor.h>

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace fvlm::ops::reference {

// Where each row is. Segments lie one behind the other.
struct RowPlaces {
  // cu_seqlens: int32 [segments + 1]
  RowPlaces(const at::Tensor& cu_seqlens, int64_t rows);

  at::Tensor each;            // int64 [rows]: its number
  at::Tensor begins, lengths; // int64 [segments]
  at::Tensor segment, index;  // int64 [rows]: its segment, any for rows of none, and its number there
  at::Tensor nowhere;         // bool [rows]: whether it is of no segment
};

// Rows in chunks of one length: all chunks are computed at once, and then what goes from chunk to chunk of all segments
// together. A segment's last chunk may have places without a row.
struct RowChunks {
  // `longest`: upper bound of a segment's rows.
  RowChunks(const RowPlaces& of_rows, int64_t longest);

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

// The states of segments with FVLM_WITH_STATES. Without tensors, or where they are NULL, states are zeros that are not
// kept.
class CarriedStates {
 public:
  CarriedStates() = default;
  CarriedStates(const fvlm_tensor* states, const fvlm_tensor* slots, const fvlm_tensor* starts);
  // [segments, ...], where a state has these sizes.
  at::Tensor before(int64_t segments, at::IntArrayRef sizes, const at::TensorOptions& options) const;
  // `after` replaces those of segments that have rows.
  void replace(const at::Tensor& after, const RowPlaces& places) const;

 private:
  at::Tensor states_, slots_, starts_;
};

} // namespace fvlm::ops::reference
