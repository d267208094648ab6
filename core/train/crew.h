// Learners side by side: every pack is cut into so many parts, each with gradients of its own, which are added up in
// order when the step ends. What a step comes to depends on the number of parts, and on no thread.
#pragma once
#include "base/task_thread.h"
#include "model/weights/model_directory.h"
#include "train/gradient_computer.h"

#include <memory>
#include <vector>

namespace fvlm::train {

// Of consecutive samples, as even as may be; no more than there are samples.
std::vector<HostPack> parts_of(const HostPack& pack, int64_t parts);

class Crew {
 public:
  // The first learner's gradients are the policy's own. `threads`: that share the work.
  struct Size {
    int64_t parts = 1, threads = 1;
  };
  Crew(const plan::Plan& plan, const plan::Stage& stage, model::Vlm& policy, ops::Operations& operations,
       Registry& registry, const model::Capacity& most, const Frozen& frozen, const Size& size);

  // As GradientComputer has them, of all together.
  void begin_step();
  void forward_backward(const HostPack& host, const StepCounts& counts, double scale, PartTimes& times,
                        bool measure_attention);
  // In the same parts, one after the other: what is cached is to the bit what a live reference computes.
  void cache_reference(const HostPack& host, const model::Vlm& reference);
  void finish_caching();
  at::Tensor sums() const;
  double counted() const;
  int64_t used_rows() const;
  int64_t all_rows() const;
  bool has_measured_attention() const { return learners_.front()->has_measured_attention(); }
  const at::Tensor& attention_entropy() const { return learners_.front()->attention_entropy(); }

  // As Operations has it. Each learner has operations of its own, which meet the same refusal by themselves.
  bool drop(const UnsupportedCall& refused);

  // The step's gradients, from now on in the policy's arena.
  void gather();

 private:
  struct Follower { // computes with the policy's values
    std::unique_ptr<ops::Operations> operations;
    std::unique_ptr<model::Vlm> vlm;
  };
  model::Vlm& policy_;
  ops::Operations& operations_;
  std::vector<Follower> followers_;
  std::vector<std::unique_ptr<GradientComputer>> learners_;
  std::vector<std::unique_ptr<TaskThread>> threads_; // besides the caller's
};

// A model this small is computed by a learner for each core; LibTorch then leaves other cores alone. Larger ones share
// their tensors among LibTorch's threads. OMP_NUM_THREADS says how many there are to be. [setup]
Crew::Size crew_for(const ModelDescription& description, at::Device device);

} // namespace fvlm::train
