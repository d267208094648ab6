// Loss: what one term of an objective makes of a pack's hidden states, with the gradient that it leaves on the tape.
#pragma once
#include "model/model.h"
#include "recipe/objective_term.h"

#include <ATen/TensorOperators.h>

#include <functional>
#include <memory>
#include <vector>

namespace fvlm::objective {

// The labels at which a term compares the model with its teacher.
struct ComparedLabels {
  at::Tensor rows;         // int64 [n]: of the model's hidden states
  at::Tensor teacher_rows; // int64 [n]: of the teacher's, which predict the same tokens
  at::Tensor weights;      // float32 [n]: as in the term's mask, 0 in padding
  at::Tensor cached;       // [n, width]: the teacher's hidden states; undefined: it reads its pack
};

// Which texts of a pack are compared with each other, by their numbers.
struct Retrieval {
  at::Tensor queries;   // int64 [queries]
  at::Tensor positives; // int64 [queries]: what each query is to find
  // bool [queries, texts]: the positive itself and all that the query is not to find
  at::Tensor compared;
};

// One pack as a term sees it.
struct LossInputs {
  ops::Tape& tape;
  ops::Operations& ops;
  const model::Model& policy;
  const model::Pack& pack;
  const ops::Value& visual;     // the connector's, in the term's view; undefined: the pack has no frames
  const ops::Value& hidden;     // the policy's, behind it
  const at::Tensor& mask;       // float32 [labels]: the weight of each label in the term, 0 where it does not learn
  at::Tensor weight;            // float64, a scalar: in the step's loss, of the loss of each label, pair or text
  const at::Tensor& used_pairs; // float64 [pairs]: 1, and 0 in padding; undefined: no term reads pairs
  const at::Tensor& judgements; // float64 [pairs]: 1 where the first text is a good answer; undefined: none is judged
  const Retrieval& retrieval;   // with a query for each of used_pairs; undefined tensors: no term embeds
  // The model that the stage starts from: float64 [2 pairs], the log-probability of each text's labels.
  std::function<at::Tensor()> reference_log_probs;
  // The same model's loss of each label, float32 [labels].
  std::function<at::Tensor()> reference_losses;
  // float32 [values, labels]: outcome_values of each label's answer, which the model gave itself; undefined: it is the
  // data's.
  const at::Tensor& outcomes;
  // The term's teacher, where it is compared with the model, and its hidden states there: [n, width].
  const model::Model* teacher = nullptr;
  const ComparedLabels* compared = nullptr;
  std::function<at::Tensor()> teacher_hidden;

  at::Tensor label_weights() const { return mask * weight; }
};

class Loss {
 public:
  virtual ~Loss() = default;

  // Whether compute() reads the cross-entropy of each label, which is computed once for all terms behind a view.
  virtual bool reads_label_losses() const = 0;
  // The gradient of each label's cross-entropy, float32 [labels], where it is known before the losses are; otherwise
  // undefined, and compute() adds to label_losses.gradient.
  virtual at::Tensor known_gradient(const LossInputs&) const { return {}; }
  // Scalars: the sum of the losses, what they are a mean over, and a sum for each of the term's figures().
  virtual std::vector<at::Tensor> compute(const LossInputs& in, const ops::Value& label_losses) const = 0;
};

// The term's loss. `term` outlives it.
std::unique_ptr<Loss> make_loss(const plan::ObjectiveTerm& term);

// For a program that adds objectives of its own to all_settings().
using MakeLoss = std::unique_ptr<Loss> (*)(const plan::ObjectiveTerm&);
void register_loss(std::string_view name, MakeLoss make);

} // namespace fvlm::objective
