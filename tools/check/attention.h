// Attention trials: cases, the calls that run them, and the float64 formula.
#pragma once
#include "check/context.h"

#include <fvlm/attention.h>

namespace fvlm::check {

struct AttentionCase {
  at::ScalarType dtype = at::kFloat;
  bool causal = false;
  int window = 0;
  int heads_q = 2, heads_kv = 2, head_dim = 64;
  std::vector<int64_t> lengths_q = {5, 17, 9};
  std::vector<int64_t> lengths_kv = {}; // empty: as lengths_q
  int64_t padding_q = 0, padding_kv = 0, spare_segments = 0;
  int rotary_dim = 0;
  int64_t first_position = 0; // of a segment's queries; its keys begin at 0
  float rope_theta = 10000;
  double scale = 0; // 0: 1 / sqrt(head_dim)
  double magnitude = 1;
  double padding_holds = 0, unattended_keys_hold = 0; // unseen: of segments without queries; 0: they are like others
  bool backward = true;
  bool uniform_lengths = false;            // sets the query's `even`
  std::vector<int64_t> extra_queries = {}; // `guests`: per segment 0 or 1; empty: none
  bool dq_only = false;
  uint64_t seed = 1;

  const std::vector<int64_t>& kv() const { return lengths_kv.empty() ? lengths_q : lengths_kv; }
  int64_t tokens_q() const;
  int64_t tokens_kv() const;
  int64_t segments() const { return static_cast<int64_t>(lengths_q.size()) + spare_segments; }
};

Trial attention_trial(const AttentionCase& attention);
std::vector<Trial> attention_cases(const std::vector<AttentionCase>& cases);

// The first of float32, bfloat16, float16 and float64 that the plugin takes in its ordinary shape.
at::ScalarType attention_dtype(Context& context);

} // namespace fvlm::check
