// The forward and backward passes of a stage: packs in, gradients in the parameter arena and sums of losses out. An
// objective is a sum of terms. Each term is a mean over the labels or pairs of the whole step, however the step is
// split into packs.
#pragma once
#include "data/stream/host_pack.h"
#include "feed/model_samples.h"
#include "model/vlm.h"
#include "recipe/plan.h"
#include "train/graph_cache.h"
#include "train/input_staging.h"
#include "train/part_times.h"
#include "train/reference_memory.h"

#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace fvlm::train {

// What the samples of a step hold. of_term: for each term of the objective its labels, or its pairs for DPO.
struct StepCounts {
  std::vector<double> of_term;
  int64_t samples = 0, text_tokens = 0, frames = 0;
  double all_terms() const;
};
StepCounts counts_of(const plan::Stage& stage, std::span<const std::shared_ptr<const Sample>> samples);

// Names of the terms in metrics: "next_token", "dpo", "kl"; a second term of the same kind is "next_token_2".
std::vector<std::string> term_names(const plan::Stage& stage);

// Models that are not trained: DPO's reference, either as a model or as its cached log-probabilities, and the teachers
// of KL terms, by the index of the term.
struct FrozenModels {
  std::shared_ptr<model::Vlm> reference;
  std::shared_ptr<ReferenceMemory> remembered;
  std::map<size_t, std::shared_ptr<model::Vlm>> teachers;
};

class Learner {
 public:
  // `max_capacity` bounds every pack of the stage. All arguments but the frozen models must outlive this object.
  Learner(const plan::Plan& plan, const plan::Stage& stage, model::Vlm& policy, ops::Operations& operations,
          const model::Capacity& max_capacity, FrozenModels frozen);
  ~Learner();

  // Sums over the packs of a step for one term: losses, the labels or pairs that they are the mean over, and for DPO
  // correctly ranked pairs and rewards.
  struct Tally {
    double losses = 0, count = 0, correct = 0, chosen = 0, rejected = 0;
  };

  void begin_step();
  // Runs the forward and backward passes of a pack: adds its gradient times `scale`, normalized by the step's `counts`.
  // `measures_attention` also computes the attention entropy.
  void take(const HostPack& host, const StepCounts& counts, double scale, PartTimes& times,
            bool measures_attention = false);
  // The same in two parts: the first copies the pack into device buffers, which the next pack of the same shapes
  // overwrites; the second runs the passes on them. The pack's host memory is kept until the next pack is staged.
  struct StagedPack;
  std::shared_ptr<StagedPack> bring(const HostPack& host, const StepCounts& counts, double scale,
                                    bool measures_attention = false);
  void take(StagedPack& staged, PartTimes& times);
  // Computes the reference's log-probabilities of the pack's pairs and puts them into FrozenModels::remembered; on a
  // GPU that happens when the next pack has been enqueued. The model must stay the same, unchanged, until
  // end_remembering(), which waits for the last of them.
  void remember(const HostPack& host, const model::Vlm& reference);
  void end_remembering();
  // Sums over the packs since begin_step() on the device: float64 [terms, 5], the members of Tally.
  const at::Tensor& sums() const { return sums_; }
  // The same on the host, one for each term. Synchronizes with the device.
  static std::vector<Tally> tallies(const at::Tensor& sums);
  // Number of labels and pairs in the packs since begin_step(), summed over all terms.
  double loss_terms() const { return loss_terms_; }
  // Decoder rows in the packs since begin_step(): those that hold a token, and all with padding.
  int64_t used_rows() const { return used_rows_; }
  int64_t all_rows() const { return all_rows_; }
  // Number of kernels that the last pack launched from a captured graph.
  int64_t kernels() const { return kernels_; }
  bool has_attention_entropy() const { return measured_attention_; } // since begin_step()
  // Entropy of the attention over a frame in nats, averaged over frames, layers and heads of the last pack that
  // measured it: a float64 scalar on the device.
  const at::Tensor& attention_entropy() const { return entropy_; }

 private:
  struct Inputs;          // the tensors of a pack
  struct StepContext;     // the pack that is being computed
  struct ReferenceInputs; // the same, staged for the frozen reference
  struct PendingLogProbs; // being read back from the device
  std::vector<bool> predicted(const SampleText& text) const;
  model::Pack make_pack(const HostPack& host);
  Inputs model_inputs_of(const HostPack& host);
  Inputs step_inputs_of(const HostPack& host, const StepCounts& counts, double scale);
  void copy_to_device(Inputs inputs, const HostPack& host, Inputs& destination);
  at::Tensor mask_of(size_t term, const HostPack& host, int64_t labels) const;
  void run_pass(const StagedPack& staged, PartTimes& times);
  model::Capacity rounded_capacity(const model::Capacity& used) const;
  void fine_losses(StepContext& context);
  void coarse_losses(StepContext& context);
  void dpo_loss(StepContext& context, size_t term, const ops::Value& losses);
  void kl_loss(StepContext& context, size_t term, const ops::Value& hidden);
  ops::Value frozen_hidden(const model::Vlm& frozen, const model::Pack& pack);
  at::Tensor reference_logprobs(const model::Vlm& reference, const model::Pack& pack, const at::Tensor& mask,
                                int64_t pairs);
  void collect_pending_logprobs();
  at::Tensor cached_logprobs(const HostPack& host) const;
  void add_sums(size_t term, std::initializer_list<at::Tensor> sums);

  const plan::Stage& stage_;
  plan::Speed speed_;
  feed::Texts texts_;
  int64_t image_size_;
  model::Vlm& policy_;
  ops::Operations& ops_;
  model::Capacity max_capacity_;
  FrozenModels frozen_;
  at::Tensor sums_;    // float64 [terms, 5]
  at::Tensor entropy_; // float64, a scalar
  double loss_terms_ = 0;
  int64_t used_rows_ = 0, all_rows_ = 0;
  int64_t kernels_ = 0;
  bool measured_attention_ = false;
  bool uses_graphs_;
  std::unique_ptr<InputStaging> input_staging_; // on a GPU, where inputs keep their addresses
  std::map<std::vector<int64_t>, std::shared_ptr<StagedPack>> staged_packs_;          // by the shapes of their inputs
  std::map<std::vector<int64_t>, std::shared_ptr<ReferenceInputs>> reference_inputs_; // by the shapes of their inputs
  std::unique_ptr<PendingLogProbs> pending_logprobs_;
};

} // namespace fvlm::train
