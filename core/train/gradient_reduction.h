// GradientReduction: sums the ranks' gradients bucket by bucket while the backward pass of a step's last pack computes
// the rest of them. Every rank reduces every bucket once a step, in one order, whatever it computes: a rank without a
// pack adds zeros, and one whose pass failed adds what is there, since all of them begin such a step anew.
#pragma once
#include "dist/group.h"
#include "model/parameters.h"
#include "ops/basic_tape.h"

#include <functional>
#include <unordered_map>
#include <unordered_set>
#include <vector>

namespace fvlm::train {

class GradientReduction : public ops::GradientMarks {
 public:
  // Starts to sum the bucket's gradients over all ranks.
  using Reduce = std::function<dist::PendingPointer(const model::GradientBucket& bucket)>;
  // The parameters outlive it. `on_replay`: is called where a CUDA graph replayed so many of these operations.
  GradientReduction(model::Parameters& parameters, Reduce reduce, std::function<void(int64_t)> on_replay = {});

  void begin_step();
  // Around the forward and backward pass that is given these marks; a CUDA graph can capture both. Afterwards all of
  // the gradients are those of all ranks.
  void begin_pass();
  void end_pass();
  // The pass between them has run, and was not only captured. `on_host`: see GraphCache::run().
  void set_done(bool on_host);
  // Reduces what no pass of the step has reduced.
  void finish();

  bool is_first_use(ops::Parameter& parameter) override;
  void begin_backward() override;
  void complete(ops::Parameter& parameter) override;

 private:
  const std::vector<model::GradientBucket>& buckets() const { return parameters_.gradient_buckets(); }
  void begin_buckets();
  void reduce_complete();
  void reduce(const model::GradientBucket& bucket);

  model::Parameters& parameters_;
  Reduce reduce_;
  std::function<void(int64_t)> on_replay_;
  std::unordered_map<const ops::Parameter*, size_t> bucket_of_;
  std::unordered_set<const ops::Parameter*> used_; // in the pass
  std::vector<size_t> incomplete_;                 // parameters of each bucket
  size_t next_ = 0;                                // bucket to be reduced
  std::vector<dist::PendingPointer> pending_;
  bool is_captured_ = false; // what was reduced: it has not run
  bool is_done_ = false;
};

} // namespace fvlm::train
