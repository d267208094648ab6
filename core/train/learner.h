// The forward and backward passes of a stage: packs in, gradients in the arena and sums of losses out. An objective is
// a sum of terms; each is the mean over all that the step holds of it, however the step is cut into packs.
#pragma once
#include "data/stream/host_pack.h"
#include "feed/model_samples.h"
#include "model/vlm.h"
#include "recipe/plan.h"
#include "train/arrivals.h"
#include "train/part_times.h"
#include "train/recorder.h"
#include "train/reference_memory.h"

#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace fvlm::train {

// What the samples of a step hold: for each term its labels, or pairs.
struct StepCounts {
  std::vector<double> of_term;
  int64_t samples = 0, text_tokens = 0, frames = 0;
  double all_terms() const;
};
StepCounts counts_of(const plan::Stage& stage, std::span<const std::shared_ptr<const Sample>> samples);

// "next_token", "dpo", "kl"; a second of its kind "next_token_2".
std::vector<std::string> term_names(const plan::Stage& stage);

// What does not learn: what DPO's policy is held against, a model or what is remembered of one, and the teachers of KL
// terms, by term.
struct FrozenModels {
  std::shared_ptr<model::Vlm> reference;
  std::shared_ptr<ReferenceMemory> remembered;
  std::map<size_t, std::shared_ptr<model::Vlm>> teachers;
};

class Learner {
 public:
  // `most`: what a pack of the stage holds at most. All but the models that do not learn outlive it.
  Learner(const plan::Plan& plan, const plan::Stage& stage, model::Vlm& policy, ops::Operations& operations,
          const model::Capacity& most, FrozenModels frozen);
  ~Learner();

  // Sums over packs, for a term: of losses, of what they are the mean over, and for preferences of right choices and
  // rewards.
  struct Tally {
    double losses = 0, count = 0, right = 0, chosen = 0, rejected = 0;
  };

  void begin_step();
  // Adds the gradient of the pack, times `scale`, where the step holds `counts`. `watches`: looks at where the model
  // looks, too.
  void take(const HostPack& host, const StepCounts& counts, double scale, PartTimes& times, bool watches = false);
  // The same in two parts: the pack goes where the device reads it, where the next will overwrite it; and what is there
  // is learnt. Until the next one comes the pack's memory is kept.
  struct Brought;
  std::shared_ptr<Brought> bring(const HostPack& host, const StepCounts& counts, double scale, bool watches = false);
  void take(Brought& brought, PartTimes& times);
  // Puts what the reference thinks of the pack's pairs into FrozenModels::remembered, on a GPU when the next pack is on
  // its way. It is the same model, and stays as it is, until end_remembering(): then all is there.
  void remember(const HostPack& host, const model::Vlm& reference);
  void end_remembering();
  // Of the packs since begin_step(), where the device has them: float64 [terms, 5].
  const at::Tensor& sums() const { return tally_; }
  // The same as numbers of the host, a term each. Waits for the device that has them.
  static std::vector<Tally> tallies(const at::Tensor& sums);
  // The labels and pairs of those packs, of all terms.
  double held() const { return held_; }
  // Rows of the decoder in the packs since begin_step(): those that hold a token, and all.
  int64_t used_rows() const { return used_rows_; }
  int64_t all_rows() const { return all_rows_; }
  // Launches of the last pack, where they were recorded.
  int64_t kernels() const { return kernels_; }
  bool has_watched() const { return watched_; } // since begin_step()
  // Of the attention over a frame, in nats: mean over frames, layers and heads of the pack that was watched last. Where
  // the device has it: float64, a scalar.
  const at::Tensor& attention_entropy() const { return entropy_; }

 private:
  struct Inputs; // a pack as tensors
  struct Work;   // one pack on its way
  struct Asked;  // what the reference is asked about
  struct Answer; // what it said to a pack
  std::vector<bool> predicted(const SampleText& text) const;
  model::Pack packed(const HostPack& host);
  Inputs bare_inputs_of(const HostPack& host);
  Inputs inputs_of(const HostPack& host, const StepCounts& counts, double scale);
  void lay(Inputs inputs, const HostPack& host, Inputs& there);
  at::Tensor mask_of(size_t term, const HostPack& host, int64_t labels) const;
  void pass(const Brought& brought, PartTimes& times);
  model::Capacity rounded(const model::Capacity& used) const;
  void learn_fine(Work& work);
  void learn_coarse(Work& work);
  void prefer(Work& work, size_t term, const ops::Value& losses);
  void follow(Work& work, size_t term, const ops::Value& hidden);
  ops::Value hidden_of(const model::Vlm& frozen, const model::Pack& pack);
  at::Tensor judged(const model::Vlm& reference, const model::Pack& pack, const at::Tensor& mask, int64_t pairs);
  void take_answer();
  at::Tensor remembered(const HostPack& host) const;
  void add(size_t term, std::initializer_list<at::Tensor> sums);

  const plan::Stage& stage_;
  plan::Speed speed_;
  feed::Texts texts_;
  int64_t image_size_;
  model::Vlm& policy_;
  ops::Operations& ops_;
  model::Capacity most_;
  FrozenModels frozen_;
  at::Tensor tally_;   // float64 [terms, 5]
  at::Tensor entropy_; // float64, a scalar
  double held_ = 0;
  int64_t used_rows_ = 0, all_rows_ = 0;
  int64_t kernels_ = 0;
  bool watched_ = false;
  bool records_;
  std::unique_ptr<Arrivals> arrivals_;                               // on a GPU, where inputs stay where they are
  std::map<std::vector<int64_t>, std::shared_ptr<Brought>> brought_; // those, by their shapes
  std::map<std::vector<int64_t>, std::shared_ptr<Asked>> asked_;     // the same
  std::unique_ptr<Answer> answer_;                                   // that is under way
};

} // namespace fvlm::train
