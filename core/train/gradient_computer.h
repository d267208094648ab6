// GradientComputer: the forward and backward passes of a stage. Packs go in; gradients gather in the policy's arena and
// sums of losses in a tensor of the step. An objective is a sum of terms, each the mean over all that the step holds of
// it, however the step is cut into packs. On a GPU, passes are captured once for each set of shapes and replayed.
#pragma once
#include "base/random.h"
#include "data/stream/host_pack.h"
#include "objective/objective.h"
#include "ops/graph_cache.h"
#include "recipe/plan.h"
#include "train/gradient_reduction.h"
#include "train/input_staging.h"
#include "train/pass_builder.h"
#include "train/reference_logprob_cache.h"
#include "train/teacher_row_cache.h"

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

namespace fvlm::train {

// What stands beside the policy: frozen models, cached log-probabilities in place of a reference, and cached hidden
// states in place of what teachers make of their texts.
struct Frozen {
  objective::FrozenModels models;
  std::shared_ptr<ReferenceLogProbCache> cache;
  std::shared_ptr<TeacherRowCache> teacher_cache;
};

// With zeros in the caches that the stage's objective reads, for a pack that nobody wrote. The order outlives it.
Frozen with_empty_caches(Frozen frozen, const plan::Stage& stage, const model::Model& policy, const Order& order,
                         const HostPack& host);

class GradientComputer {
 public:
  // `max`: the most that a pack of the stage holds. All but the frozen models outlive it.
  GradientComputer(const plan::Plan& plan, const plan::Stage& stage, model::Model& policy, ops::Operations& operations,
                   const model::Capacity& max, Frozen frozen);
  ~GradientComputer();

  // The sums of one term: of its losses, of what they are a mean over, and of its figures.
  struct TermSums {
    double loss = 0, count = 0;
    std::vector<double> figures;
  };

  void begin_step();
  // Adds the gradient of the pack, times `scale`, where the step holds `counts`. `reduction`: where not null, reduces
  // the step's gradients meanwhile.
  void forward_backward(const HostPack& host, const StepCounts& counts, double scale, PartTimes& times,
                        bool measure_attention = false, GradientReduction* reduction = nullptr);
  // The same in two parts: the pack is put where the device reads it, until the next one takes the place; and what is
  // there goes through the passes. The pack's memory is kept until then.
  struct StagedPack;
  std::shared_ptr<StagedPack> stage(const HostPack& host, const StepCounts& counts, double scale,
                                    bool measure_attention = false);
  void forward_backward(StagedPack& staged, PartTimes& times, GradientReduction* reduction = nullptr);

  // Puts the reference's log-probabilities of the pack's pairs into Frozen::cache; on a GPU once the next pack is on
  // its way. The reference is the same model, and unchanged, until finish_caching(), which waits for the last.
  void cache_reference(const HostPack& host, const model::Model& reference);
  // The same for the hidden states of cached teachers, into Frozen::teacher_cache.
  void cache_teachers(const HostPack& host);
  void finish_caching();

  // Of the packs since begin_step(), on the device: float64, a row for each decoder and term.
  const at::Tensor& sums() const { return sums_.terms; }
  // The same on the host, decoder by decoder; waits for the device. Columns without a figure are left out.
  static std::vector<TermSums> read_sums(const at::Tensor& sums, const plan::Stage& stage);
  // The labels and pairs of those packs, of all terms.
  double counted() const { return counted_; }
  // Frames that the encoder read of those packs.
  int64_t encoded_frames() const { return encoded_frames_; }
  // Rows of the decoder in those packs: that hold a token, and all.
  int64_t used_rows() const { return used_rows_; }
  int64_t all_rows() const { return all_rows_; }
  // Kernels that the last pack launched, where its pass was replayed.
  int64_t kernels() const { return kernels_; }
  // Whether attention was measured since begin_step().
  bool has_measured_attention() const { return measured_attention_; }
  // The entropy of the attention over a frame, in nats: the mean over frames, layers and heads of the pack that was
  // measured last. On the device: float64, a scalar.
  const at::Tensor& attention_entropy() const { return sums_.attention_entropy; }

 private:
  struct FrozenPack;
  struct PendingOutputs;
  using MakeOutputs = std::function<std::vector<at::Tensor>(const std::vector<StagedInputs>& places)>;
  using TakeOutputs = std::function<void(const std::vector<PackedSample>& samples, const std::vector<at::Tensor>&)>;
  enum class FrozenRead { reference, teachers };
  void compute_once(FrozenRead which, const HostPack& host, const MakeOutputs& make, TakeOutputs take);
  void collect_outputs();
  at::Tensor cached_log_probs(const HostPack& host, int64_t pairs) const; // padded to so many pairs
  void add_cached_rows(const HostPack& host, size_t decoder, objective::PassInputs& inputs) const;
  static std::vector<int64_t> shape_keys(std::vector<BuiltPass>& built);
  // Where passes read them, one for each decoder.
  void put_in_place(std::vector<BuiltPass> built, const HostPack& host, std::vector<StagedInputs>& places);

  const plan::Stage& stage_;
  objective::Objective objective_;
  PassBuilder builder_;
  model::Model& policy_;
  ops::Operations& ops_;
  Frozen frozen_;
  objective::PassSums sums_;
  double counted_ = 0;
  int64_t encoded_frames_ = 0, used_rows_ = 0, all_rows_ = 0;
  int64_t kernels_ = 0;
  bool measured_attention_ = false;
  bool drops_; // an adapter has dropout
  RandomStream dropout_;
  bool captures_;
  std::unique_ptr<InputStaging> staging_; // on a GPU
  // There, what was staged and captured, by shapes.
  std::map<std::vector<int64_t>, std::shared_ptr<StagedPack>> staged_;
  std::map<std::vector<int64_t>, std::shared_ptr<FrozenPack>> frozen_packs_;
  std::unique_ptr<PendingOutputs> pending_;
};

} // namespace fvlm::train
