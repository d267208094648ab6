// ShortAnswers: whether samples are questions with answers of a few words, which a generated answer can match.
#pragma once
#include "data/samples/sample.h"

#include <cstdint>
#include <optional>
#include <set>

namespace fvlm::cli {

class ShortAnswers {
 public:
  void add(const Sample& sample);

  // Tokens that hold any of the answers, with room; nullopt: some of the samples are conversations, captions or long
  // answers.
  std::optional<int64_t> tokens() const;

 private:
  std::set<uint64_t> prompts_, answers_; // hashes of those that differ
  int64_t samples_ = 0, short_ = 0, longest_ = 0;
};

} // namespace fvlm::cli
