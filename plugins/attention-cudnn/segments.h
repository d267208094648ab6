// segments.h: the packed segments and tensors of a call, as this plugin's kernels take them.
#pragma once
#include "common/attention_operands.h"

#include <cstdint>

namespace fvlm::plugins {

struct Segments {
  const std::int32_t *cu_q = nullptr, *cu_kv = nullptr;
  int segments = 0, heads_q = 0, heads_kv = 0, head_dim = 0;
  std::int64_t tokens_q = 0, tokens_kv = 0;
  float scale = 0;
  HeadTensor q, k, v, out;
  HeadTensor d_out, d_q, d_k, d_v; // d_k and d_v without data: no gradient required
};

} // namespace fvlm::plugins
