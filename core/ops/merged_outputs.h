// MergedOutputs: what several partial calls of attention (fvlm/attention.h) come to together, of the same queries and
// of other keys each: the mean of their outputs, weighted by the exponentials of their log-sum-exps.
#pragma once
#include "ops/attention.h"

namespace fvlm::ops {

// Float32, or float64 where x is that.
at::ScalarType type_of_sums(const at::Tensor& x);

class MergedOutputs {
 public:
  explicit MergedOutputs(const Attention::Output& first);
  // `part`: of the rows from `first` on.
  void add(const Attention::Output& part, int64_t first);
  const at::Tensor& out() const { return out_; }
  at::Tensor log_sum_exp() const; // as backward gets it

 private:
  at::Tensor out_, log_sum_exp_; // minus infinity where no key was visible to a row
};

} // namespace fvlm::ops
