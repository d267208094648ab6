// segment_lengths.h: for which lengths of segments this plugin asks to be chosen before cuDNN. Up to 512 keys each was
// measured to be faster, packs of all lengths and fine queries of repeated frames in the ragged stream as a whole.
#pragma once
#include <fvlm/attention.h>

#include <cstdint>

namespace fvlm::plugins {

// Of segments of all lengths, what counts lies between the longest, of which there may be one, and an equal share of
// the rows: it is taken to be their geometric mean.
inline bool has_short_segments(const fvlm_attention_query& query) {
  constexpr std::int64_t max_length = 512, max_mean = 640, max_longest = 2048, max_queries = 16;
  const std::int64_t longest = query.max_seqlen_kv;
  if (query.max_seqlen_q <= 1) return false;
  if (!query.causal) return query.max_seqlen_q <= max_queries && longest <= max_length && query.even == 0;
  if (longest <= max_length) return true;
  return longest <= max_longest && query.segments > 0 &&
         query.tokens_kv / query.segments * longest <= max_mean * max_mean;
}

} // namespace fvlm::plugins
