// A stage's optimizer at work: the chosen plugins over the flat arenas, each group at its own rate.
#pragma once
#include "ops/graph_cache.h"
#include "ops/optimizer.h"
#include "plugin/registry.h"
#include "plugin/selection.h"
#include "train/gradient_reduction.h"
#include "train/groups.h"
#include "train/shared_arenas.h"

#include <ATen/core/Tensor.h>

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace fvlm::train {

class Optimization {
 public:
  // Throws Error(plugin) where nobody has the algorithm, Error(recipe) for hyperparameters that it does not know.
  // The ranks that share the stage, if any, outlive it.
  Optimization(const plan::Plan& plan, const plan::Stage& stage, Registry& registry, model::Parameters& parameters,
               std::vector<Group> groups, const Sharing& sharing = {});

  // Of each group that is trained, in order; of what Muon leaves to AdamW, the second. 0 where the group has none of
  // it.
  struct Rates {
    double lr = 0, others = 0;
  };
  // Muon's momentum for this step of the stage, counted from 0, where it has a warm-up.
  void set_momentum(int64_t step);
  // A step with the gradients as they stand, summed over all ranks, times `scale`, and no longer together than `clip`
  // (0: any length). Where they or `sums` (float64, of one shape) are not finite it changes nothing, and is not
  // counted. Nothing is read back. recorded: false where it is to run operation by operation in any case.
  void step(const std::vector<Rates>& rates, double scale, double clip, const at::Tensor& sums, bool recorded = true);
  // Of those gradients, scaled. Waits for the device.
  double gradient_norm() const { return norm_.item<double>(); }
  // The same where the device has it: float64, a scalar.
  const at::Tensor& norm() const { return norm_; }
  // The step's `sums`, of all ranks.
  const at::Tensor& sums() const { return sums_; }
  // Launches of the last step, where they were recorded.
  int64_t kernels() const { return kernels_; }

  // Of several ranks' gradients, which a step's last backward pass reduces; null where step() does it.
  GradientReduction* reduction() const { return reduction_.get(); }

  std::vector<const Group*> trained() const;
  const std::vector<Rates>& base_rates() const { return base_rates_; }
  // Whether Muon has no matrix of the group, so that its rate is that of the others.
  bool is_all_others(size_t group) const { return all_others_[group]; }

  static constexpr const char* master_weights = "master"; // in state()
  // What a checkpoint has to hold besides the parameters: moments by "ALGORITHM.NAME", and "master" where the model
  // computes in another type. Views: what is copied into them is what the next step reads. Of arenas of so many
  // elements they are this rank's slice.
  std::map<std::string, at::Tensor> state() const;
  // Moments that share a tensor of state() with those of another algorithm, by names of their own, under which
  // checkpoints of earlier versions have them apart: 0 where their algorithm updates nothing.
  std::map<std::string, at::Tensor> shared_state() const;
  int64_t elements() const { return parameters_.trained().numel(); }
  const at::Tensor& values() const { return parameters_.trained(); } // what the model computes with
  const dist::Slice& own_slice() const { return arenas_.own(); }
  // What this rank writes of it: with several ranks a slice, which together, in the order of the ranks, are the whole.
  std::map<std::string, at::Tensor> share_of_state() const;
  // That were applied. Waits for the device.
  int64_t steps() const { return step_.item<int64_t>() - 1; }
  void resume_at(int64_t steps) { step_.fill_(steps + 1); }
  // Masters from the model's values, for a stage that begins.
  void adopt_values();

  const std::vector<SelectionReport>& choices() const { return choices_; } // one for each algorithm

 private:
  struct Part {                   // an algorithm over some of the segments
    std::string algorithm, place; // in the plan
    std::shared_ptr<ops::Optimizer> optimizer;
    std::vector<ops::Optimizer::State> states;
    at::Tensor hyperparameters, of_device; // on the host, and where the plugin reads them
    bool others = false;
  };
  void add_part(const plan::Plan& plan, const plan::Stage& stage, Registry& registry, bool others);
  std::vector<fvlm_optimizer_segment> own_segments(const std::vector<fvlm_optimizer_segment>& all) const;
  std::vector<dist::Slice> whole_parts(const plan::Stage& stage) const;
  void share_gradients(const Sharing& sharing);
  void apply();
  void set(Part& part, const std::string& name, size_t group, double value);

  model::Parameters& parameters_;
  std::vector<Group> groups_;
  SharedArenas arenas_;
  std::unique_ptr<GradientReduction> reduction_;
  std::vector<Part> parts_;
  at::Tensor own_gradients_;          // of this rank's slice, where the others have theirs (ZeRO-2)
  at::Tensor master_;                 // the parameters themselves where they are float32
  std::vector<at::Tensor> untrained_; // gradients inside the arena that nobody asked for
  at::Tensor norm_, limits_;          // float64, of the device: a scalar; the scale and the greatest length
  at::Tensor sums_;                   // what the caller wants to be finite, too
  at::Tensor step_, scale_, skip_;    // what plugins read; step_: of the next one, from 1
  bool uses_graphs_;
  std::map<std::vector<bool>, ops::GraphCache> graphs_; // by the parameters that have a gradient
  int64_t kernels_ = 0;
  std::vector<Rates> base_rates_;
  std::vector<bool> all_others_;   // by group
  std::optional<plan::Muon> muon_; // the recipe's, where it is Muon
  std::vector<SelectionReport> choices_;
};

// Throws Error(plugin) where no plugin has a stage's algorithms for what it trains, in the types and on the device of
// the run. Of the parameters only names and shapes are read.
void require_optimizer(const plan::Plan& plan, const plan::Stage& stage, Registry& registry,
                       const model::Parameters& parameters, const std::vector<Group>& groups, at::Device device);

} // namespace fvlm::train
