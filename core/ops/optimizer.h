// One step over flat arenas through a chosen table: see fvlm/optimizer.h.
#pragma once
#include "ops/backend.h"

#include <memory>
#include <span>

namespace fvlm::ops {

class Optimizer : public Prepared<fvlm_optimizer_v1> {
 public:
  // The query's segments are set from `segments`.
  Optimizer(Backend<fvlm_optimizer_v1> backend, const Query& query, std::vector<fvlm_optimizer_segment> segments);

  std::span<const fvlm_hyperparameter> hyperparameters() const;
  // float32 [groups, hyperparameters], each at its fallback.
  at::Tensor default_hyperparameters() const;

  struct State {
    std::string name; // in a checkpoint
    at::Tensor values;
  };
  // All of them zero, as before the first step.
  std::vector<State> make_states() const;

  struct Arenas {
    at::Tensor master, gradient;
    at::Tensor parameter; // undefined where it is the master
    std::vector<at::Tensor> states;
  };
  // Device scalars that a recorded step reads anew: int64, float32, int32, of one element each.
  struct Control {
    at::Tensor hyperparameters, step, scale, skip;
  };
  void step(const Arenas& arenas, const Control& control) const;

 private:
  using Segments = std::shared_ptr<const std::vector<fvlm_optimizer_segment>>;
  Optimizer(Segments segments, Backend<fvlm_optimizer_v1> backend, const Query& query);
  Segments segments_; // what the query points to
  at::Tensor device_segments_;
};

} // namespace fvlm::ops
