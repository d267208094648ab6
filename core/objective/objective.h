// Objective: a sum of terms at work. One pack goes through the model and the terms, forward and backward; gradients go
// to the policy's arena and sums of losses to the caller.
#pragma once
#include "base/part_times.h"
#include "model/model.h"
#include "objective/loss.h"
#include "recipe/objective_term.h"

#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace fvlm::objective {

// Models that stand beside the policy and do not train.
struct FrozenModels {
  std::shared_ptr<model::Model> reference;                  // the model that the stage starts from
  std::map<size_t, std::shared_ptr<model::Model>> teachers; // of a term, by its index

  // The term's teacher: one of these, or the policy itself.
  const model::Model& teacher(size_t term, const model::Model& policy) const {
    const auto found = teachers.find(term);
    return found == teachers.end() ? policy : *found->second;
  }
};

// All that a pass reads of a pack and nothing else: a captured pass serves every pack of the same shapes.
struct PassInputs {
  model::Pack pack;
  std::optional<model::Pack> teacher_pack;   // texts of teachers with prompts of their own, without labels
  std::map<size_t, ComparedLabels> compared; // of the terms with a teacher, by their indices
  std::vector<at::Tensor> masks; // one a term: float32 [labels], weights of labels, 0 where it does not learn
  at::Tensor weights;            // float64 [terms]: of the loss of each label, pair or text in the step's
  at::Tensor frame_shares;       // float64 [frame slots]: of each used frame in the mean over the used ones
  at::Tensor used_pairs;         // float64 [pairs]: 1, and 0 in padding; undefined: no term reads pairs
  at::Tensor judgements;         // float64 [pairs]: 1 where the first text is a good answer; undefined: none is judged
  Retrieval retrieval;           // with a query for each of used_pairs; undefined tensors: no term embeds
  // float32 [values, labels]: outcome_values of each label's answer; undefined: the answers are the data's
  at::Tensor outcomes;
  at::Tensor reference_log_probs; // float64 [2 pairs], cached; undefined: the reference itself reads the pack
};

// The passes of a pack, one for each decoder of the model.
using DecoderPasses = std::vector<const PassInputs*>;

// Where a pass adds its sums: device tensors of the step.
struct PassSums {
  at::Tensor terms;             // float64 [decoders * terms, Objective::columns()]: losses, count, figures
  at::Tensor attention_entropy; // float64, a scalar; undefined: not measured in this pass
};

// "next_token", "dpo"; a second one of its kind is "next_token_2". Then those of further decoders:
// "next_token.decoder2".
std::vector<std::string> term_names(std::span<const plan::Term> terms, size_t decoders = 1);

class Objective {
 public:
  // The terms outlive it.
  Objective(std::span<const plan::Term> terms, const std::string& mode);

  std::span<const plan::Term> terms() const { return terms_; }
  // Columns of PassSums::terms: the loss, its count, and the most figures that a term has.
  int64_t columns() const { return columns_; }
  // The views of visual tokens that the decoder reads the text behind, each once.
  int64_t views() const { return std::ssize(views_); }

  // `marks`: where not null, learns during the backward pass which of the policy's gradients are complete.
  void forward_backward(ops::Operations& ops, const model::Model& policy, const FrozenModels& frozen,
                        const DecoderPasses& passes, const PassSums& sums, PartTimes& times,
                        ops::GradientMarks* marks = nullptr) const;

  // What follows is of the decoder that the policy is given with. The reference's log-probabilities of the labels that
  // the first term with pairs selects: float64 [2 pairs].
  at::Tensor reference_log_probs(ops::Operations& ops, const model::Model& reference, const PassInputs& in) const;

  // The hidden states of a term's teacher at the labels that it is compared at: [n, width].
  at::Tensor teacher_hidden(ops::Operations& ops, const model::Model& policy, const FrozenModels& frozen,
                            const PassInputs& in, size_t term) const;

 private:
  struct View {
    std::string name; // empty: the connector's own choice
    std::vector<size_t> terms;
  };
  struct Pass;
  void add_views(const Pass& pass, const model::VisualTokens& seen) const;
  void add_view(const Pass& pass, const View& view, const ops::Value& visual, const ops::Value& hidden) const;
  ops::Value hidden_of(const model::Model& frozen, ops::Operations& ops, const model::Pack& pack) const;
  at::Tensor log_probs(ops::Operations& ops, const model::Model& reference, const PassInputs& in, size_t term) const;

  std::span<const plan::Term> terms_;
  std::string mode_; // of the connector
  std::vector<std::unique_ptr<Loss>> losses_;
  std::vector<View> views_; // the connector's own choice first
  int64_t columns_ = 2;
};

} // namespace fvlm::objective
