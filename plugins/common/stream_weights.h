// Whether products of few rows stream large weights through shared memory (cuda_streamed_product.cuh): only where
// FVLM_STREAM_WEIGHTS is set. Since these kernels were last compared with float32 sums on a GPU, their shared memory
// was laid out anew; bench/LOG.md (2026-11-26) has what they gain, and how to compare them.
#pragma once
#include <cstdlib>

namespace fvlm::plugins {

inline bool streams_weights() {
  static const bool asked = [] {
    const char* value = std::getenv("FVLM_STREAM_WEIGHTS");
    return value && *value;
  }();
  return asked;
}

} // namespace fvlm::plugins
