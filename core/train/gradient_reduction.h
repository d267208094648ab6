// GradientReduction: sums the ranks' gradients bucket by bucket while the backward pass of a step's last pack computes
// the rest of them; with ZeRO-2 that of every pack. Every rank reduces every bucket equally often, in one order,
// whatever it computes: a rank without a pack adds zeros, and one whose pass failed adds what is there, since all of
// them begin such a step anew.
#pragma once
#include "dist/group.h"
#include "model/parameters.h"
#include "ops/basic_tape.h"

#include <deque>
#include <functional>
#include <unordered_map>
#include <unordered_set>
#include <vector>

namespace fvlm::train {

class GradientReduction : public ops::GradientMarks {
 public:
  struct Calls {
    // Starts to sum the bucket's gradients over all ranks.
    std::function<dist::PendingPointer(const model::GradientBucket& bucket)> reduce;
    // A CUDA graph replayed so many of these operations.
    std::function<void(int64_t operations)> on_replay = {};
    // Where gradients have buffers: a step begins, and a bucket was reduced and is about to be released.
    std::function<void()> on_step = {};
    std::function<void(const model::GradientBucket& bucket)> on_reduced = {};
  };
  // The parameters outlive it.
  GradientReduction(model::Parameters& parameters, Calls calls);

  // `passes`: the most that a rank has in the step.
  void begin_step(int64_t passes);
  // What a pass is to be given.
  GradientReduction* for_pass(bool is_last) { return is_last || buffers_ ? this : nullptr; }
  // Around the forward and backward pass that is given these marks; a CUDA graph can capture both. Afterwards all of
  // the gradients are those of all ranks, or where they have buffers, gone.
  void begin_pass();
  void end_pass();
  // The pass between them has run, and was not only captured. `on_host`: see GraphCache::run().
  void set_done(bool on_host);
  // Reduces what the step's passes have not reduced, as if there were as many as begin_step() said.
  void finish();

  bool is_first_use(ops::Parameter& parameter) override;
  void begin_backward() override;
  void complete(ops::Parameter& parameter) override;

 private:
  const std::vector<model::GradientBucket>& buckets() const { return parameters_.gradient_buckets(); }
  void begin_buckets();
  void reduce_complete();
  void reduce(const model::GradientBucket& bucket);
  void wait_until_left(size_t buckets);

  model::Parameters& parameters_;
  Calls calls_;
  bool buffers_; // gradients have no arena: each pass reduces its own
  std::unordered_map<ops::Parameter*, size_t> bucket_of_;
  std::unordered_set<const ops::Parameter*> used_; // in the pass
  std::vector<size_t> incomplete_;                 // parameters of each bucket
  size_t next_ = 0;                                // bucket to be reduced
  std::deque<std::pair<const model::GradientBucket*, dist::PendingPointer>> pending_;
  bool in_pass_ = false, is_captured_ = false; // captured: the pass has not run
  int64_t passes_ = 1, done_ = 0;
};

} // namespace fvlm::train
