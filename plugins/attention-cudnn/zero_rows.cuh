// zero_rows.cuh: sets rows of a tensor to zero, shared by many threads.
#pragma once
#include "segment_layout.h"

namespace fvlm::plugins {

// Zeros rows [begin, end); the calling thread is `worker` of `workers`.
__device__ inline void zero_rows(const ZeroFill& z, std::int64_t begin, std::int64_t end, std::int64_t worker,
                                 std::int64_t workers) {
  const std::int64_t words = z.head_bytes / 4, row_words = words * z.heads;
  for (std::int64_t i = worker; i < (end - begin) * row_words; i += workers) {
    const std::int64_t row = begin + i / row_words, head = i % row_words / words, word = i % words;
    reinterpret_cast<std::uint32_t*>(static_cast<char*>(z.data) + row * z.row_stride + head * z.head_stride)[word] = 0;
  }
}

} // namespace fvlm::plugins
