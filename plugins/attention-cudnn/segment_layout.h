// segment_layout.h: what has to lie in device memory before cuDNN is called: lengths and offsets of the segments, and
// zeros where it writes nothing. The host never sees cu_seqlens.
#pragma once
#include <fvlm/cuda.hpp>

namespace fvlm::plugins {

enum class Side { query, key };

// Offsets of a tensor's segments in elements, segments + 1 of them.
struct RaggedOffsets {
  std::int32_t* offsets = nullptr;
  std::int64_t row_stride = 0; // elements from row to row
  Side side = Side::query;
};

// A tensor of 16-bit or 32-bit elements whose unread rows become 0.
struct ZeroFill {
  void* data = nullptr;
  std::int64_t rows = 0, row_stride = 0, head_stride = 0; // how many, and distances in bytes
  int heads = 0, head_bytes = 0;                          // a multiple of 4
  Side side = Side::query;
};

struct SegmentLayout {
  const std::int32_t *cu_q = nullptr, *cu_kv = nullptr;
  int segments = 0;
  bool causal = false;
  std::int32_t *lengths_q = nullptr, *lengths_kv = nullptr; // NULL: only zeros are wanted
  RaggedOffsets offsets[8];
  int offset_count = 0;
  ZeroFill zeros[3];
  int zero_count = 0;
};

// Query rows that see no key (their segment has none, or causal queries outnumber the keys) are left out of the
// lengths, and so are keys that no query sees: those rows are zeroed, and so is what lies behind the last segment.
void write_segment_layout(const fvlm_call& call, const SegmentLayout& arrangement);

} // namespace fvlm::plugins
