// When an answer ends, besides the most tokens that it may have.
#pragma once
#include <cstdint>
#include <vector>

namespace fvlm::infer {

struct StopRules {
  bool ignore_eos = false;                  // goes on behind the model's end tokens
  int64_t min_tokens = 0;                   // no token that ends it comes before so many
  std::vector<int64_t> stop_token_ids = {}; // that end it besides the model's end tokens
};

} // namespace fvlm::infer
