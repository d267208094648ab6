// MergedOutputs: what several partial calls of attention (fvlm/attention.h) come to together, of the same queries and
// of other keys each: the mean of their outputs, weighted by the exponentials of their log-sum-exps.
#pragma once
#include "ops/attention.h"

namespace fvlm::ops {

// Float32, or float64 where x is that.
at::ScalarType type_of_sums(const at::Tensor& x);

struct MergedOutput {
  at::Tensor out, log_sum_exp; // of all keys, as backward gets them
};

class MergedOutputs {
 public:
  explicit MergedOutputs(const Attention::Output& first);
  // `part`: of the rows from `first` on.
  void add(const Attention::Output& part, int64_t first);
  // In the type of `q`; into memory that is given, or new one where it is undefined.
  MergedOutput finish(const at::Tensor& q, const at::Tensor& into) const;

 private:
  at::Tensor out_, log_sum_exp_; // minus infinity where no key was visible to a row
};

} // namespace fvlm::ops
