// Statistics of a mix: lengths of its samples, and how well packs are filled.
#pragma once
#include "data/stream/composer.h"

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

namespace fvlm {

// The distribution of a list of values.
class Distribution {
 public:
  void add(int64_t value) { values_.push_back(value); }
  size_t count() const { return values_.size(); }
  int64_t sum() const;
  double mean() const; // 0 without values
  int64_t min() const;
  int64_t max() const;
  int64_t quantile(double share) const; // the value that this share of them does not exceed; 0 of none

  struct Bar {
    int64_t from, to; // both within
    size_t count;
  };
  // At most `bars` ranges of equal width that hold them all.
  std::vector<Bar> histogram(size_t bars) const;

 private:
  std::vector<int64_t> values_;
};

struct SourceStatistics {
  Distribution frames, tokens, answer_tokens;            // by sample; tokens of all its texts
  int64_t cut = 0, truncated_tokens = 0, cut_answer = 0; // samples that max_text_tokens shortened, and by how much
};

struct DataStatistics {
  std::map<std::string, SourceStatistics> sources; // by the names that samples give, else that of their source
  SourceStatistics all;
  Distribution rows;        // of the decoder, by sample
  int64_t longest_text = 0; // tokens of one text of a sample
  int64_t broken = 0, left_out = 0;
  static constexpr size_t most_reasons = 20;
  std::vector<std::string> reasons; // of the first that were skipped: broken or left out

  int64_t steps = 0, packs = 0;
  Distribution packs_a_step, samples_a_pack;
  PackSize capacity;
  PackSize filled;  // over all packs
  PackSize fullest; // of any pack
  // Rows that training computes for a pack of samples of these rows; none: those of the capacity.
  std::function<int64_t(const std::vector<int64_t>& rows)> computed;
  int64_t computed_rows = 0; // of all packs
  int64_t padded_rows = 0;   // if each step were a batch padded to its longest sample

  double fill_of_frames() const;
  double fill_of_rows() const;
  double padding_waste() const; // of the padded batches, share of their rows
  double packing_waste() const; // of the packs as training computes them

  // Where every step is one pack: what holds it. Else a capacity of about as many rows in which frames and rows run out
  // together.
  PackSize suggestion() const;

  // `names`: of the mix's sources.
  void add(const ComposedStep& step, const std::vector<std::string>& names);
  // A sample that is in no pack.
  void add(const MeasuredSample& measured, const std::string& source);
};

} // namespace fvlm
