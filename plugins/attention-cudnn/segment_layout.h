// segment_layout.h: what has to be in device memory before cuDNN runs: lengths and ragged offsets of the segments, and
// zeros in the rows that cuDNN does not write. The host never reads cu_seqlens.
#pragma once
#include <fvlm/cuda.hpp>

namespace fvlm::plugins {

enum class Side { query, key };

// The ragged offsets of a tensor in elements, segments + 1 of them.
struct RaggedOffsets {
  std::int32_t* offsets = nullptr;
  std::int64_t row_stride = 0; // in elements
  Side side = Side::query;
};

// A tensor of 16-bit or 32-bit elements of which rows that cuDNN does not write are zeroed.
struct ZeroFill {
  void* data = nullptr;
  std::int64_t rows = 0, row_stride = 0, head_stride = 0; // strides in bytes
  int heads = 0, head_bytes = 0;                          // head_bytes is a multiple of 4
  Side side = Side::query;
};

struct SegmentLayout {
  const std::int32_t *cu_q = nullptr, *cu_kv = nullptr;
  int segments = 0;
  bool causal = false;
  std::int32_t *lengths_q = nullptr, *lengths_kv = nullptr; // NULL: only zero rows
  RaggedOffsets offsets[8];
  int offset_count = 0;
  ZeroFill zeros[3];
  int zero_count = 0;
};

// Fully masked query rows (their segment has no keys, or causal queries outnumber the keys) are left out of the
// lengths, and so are keys that no query attends to. Those rows are zeroed, as is the padding after the last segment.
void write_segment_layout(const fvlm_call& call, const SegmentLayout& arrangement);

} // namespace fvlm::plugins
