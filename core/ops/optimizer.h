// An optimizer step over flat arenas, by a selected plugin: see fvlm/optimizer.h.
#pragma once
#include "ops/backend.h"

#include <memory>
#include <span>

namespace fvlm::ops {

class Optimizer : public Prepared<fvlm_optimizer_v1> {
 public:
  // Sets the query's segments (parameter slices of the arenas) to `segments`.
  Optimizer(Backend<fvlm_optimizer_v1> backend, const Query& query, std::vector<fvlm_optimizer_segment> segments);

  std::span<const fvlm_hyperparameter> hyperparameters() const;
  // On the host: float32 [groups, hyperparameters], each at its default.
  at::Tensor default_hyperparameters() const;

  struct State {
    std::string name; // as in checkpoints
    at::Tensor values;
  };
  // Optimizer states as before the first step: zeros. The first ones are those of `lent`, of as many elements, where
  // the dtypes are the same: of an algorithm that updates other segments of the same arenas.
  std::vector<State> make_states(std::span<const State> lent = {}) const;

  struct Arenas {
    at::Tensor master, gradient;
    at::Tensor parameter; // undefined where the model computes with the master weights themselves
    std::vector<at::Tensor> states;
  };
  // On the device, so that a captured step reads their current values. step, scale and skip have one element of int64,
  // float32 and int32.
  struct Control {
    at::Tensor hyperparameters, step, scale, skip;
  };
  void step(const Arenas& arenas, const Control& control) const;

 private:
  using Segments = std::shared_ptr<const std::vector<fvlm_optimizer_segment>>;
  Optimizer(Segments segments, Backend<fvlm_optimizer_v1> backend, const Query& query);
  Segments segments_; // the query points to them
  at::Tensor device_segments_;
};

} // namespace fvlm::ops
