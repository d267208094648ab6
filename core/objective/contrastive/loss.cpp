#include "objective/loss.h"

#include "base/error.h"
#include "objective/contrastive/settings.h"
#include "ops/rows.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/log_softmax.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/zeros_like.h>

#include <limits>

namespace fvlm::objective {
namespace {

// Vectors of length 1, and what leads a gradient by them back to the vectors that they were made of.
struct Normalized {
  at::Tensor vectors, lengths;

  explicit Normalized(const at::Tensor& raw) : lengths(raw.square().sum(1, true).sqrt().clamp_min(1e-12)) {
    vectors = raw / lengths;
  }
  at::Tensor gradient(const at::Tensor& by_vectors) const {
    return (by_vectors - vectors * (vectors * by_vectors).sum(1, true)) / lengths;
  }
};

// Where each row has its target: bool [rows, columns].
at::Tensor places_of(const at::Tensor& targets, int64_t columns) {
  return at::arange(columns, targets.options()).eq(targets.unsqueeze(1));
}

// Cross-entropy of finding `targets` among the columns that each row is compared with.
struct Finding {
  at::Tensor similarities; // [rows, columns]
  at::Tensor losses;       // [rows]
  at::Tensor gradient;     // [rows, columns]: of each row's loss by its similarities

  Finding(const at::Tensor& from, const at::Tensor& among, const at::Tensor& targets, const at::Tensor& compared,
          double temperature)
      : similarities(at::matmul(from, among.t())) {
    const at::Tensor scores =
        (similarities / temperature).masked_fill(compared.logical_not(), -std::numeric_limits<double>::infinity());
    const at::Tensor logs = at::log_softmax(scores, 1);
    losses = logs.gather(1, targets.unsqueeze(1)).squeeze(1).neg();
    gradient = (logs.exp() - places_of(targets, among.size(0)).to(at::kDouble)) / temperature;
  }
};

class ContrastiveLoss : public Loss {
 public:
  explicit ContrastiveLoss(const Contrastive& term) : term_(term) {}

  bool reads_label_losses() const override { return false; }

  std::vector<at::Tensor> compute(const LossInputs& in, const ops::Value&) const override {
    const ops::Value states = ops::gather_rows(in.tape, in.hidden, model::last_rows(in.pack));
    const at::Tensor raw = states.data.to(at::kDouble), gradient = at::zeros_like(raw);
    const int64_t width = raw.size(1);
    std::vector<at::Tensor> sums;
    const at::Tensor losses = add_losses(in, raw, gradient, &sums);
    for (const int64_t dimensions : term_.dimensions) {
      if (dimensions > width)
        throw Error(ErrorKind::recipe, "fvlm.contrastive: dimensions has {}, and embeddings of this model have {}",
                    dimensions, width);
      if (dimensions < width)
        losses.add_(add_losses(in, raw.narrow(1, 0, dimensions), gradient.narrow(1, 0, dimensions), nullptr));
    }
    if (states.requires_grad()) states.gradient->add(gradient.to(states.data.scalar_type()));
    sums.insert(sums.begin(), {(losses * in.used_pairs).sum(), in.used_pairs.sum()});
    return sums;
  }

 private:
  // The loss of each query, whose gradient is added. `figures`: not null, receives their sums.
  at::Tensor add_losses(const LossInputs& in, const at::Tensor& raw, const at::Tensor& gradient,
                        std::vector<at::Tensor>* figures) const {
    const auto& [queries, positives, compared] = in.retrieval;
    const Normalized all(raw);
    const at::Tensor from = all.vectors.index_select(0, queries), to = all.vectors.index_select(0, positives);
    const at::Tensor share = (in.used_pairs * in.weight * (term_.symmetric ? 0.5 : 1)).unsqueeze(1);
    const Finding found(from, all.vectors, positives, compared, term_.temperature);
    const at::Tensor of_texts = at::matmul((found.gradient * share).t(), from); // by all.vectors
    of_texts.index_add_(0, queries, at::matmul(found.gradient * share, all.vectors));
    at::Tensor losses = found.losses;
    if (term_.symmetric) {
      const at::Tensor back = compared.index_select(1, positives).t(); // [positives, queries]
      const Finding returned(to, from, at::arange(queries.size(0), queries.options()), back, term_.temperature);
      of_texts.index_add_(0, positives, at::matmul(returned.gradient * share, from));
      of_texts.index_add_(0, queries, at::matmul((returned.gradient * share).t(), to));
      losses = (losses + returned.losses) * 0.5;
    }
    gradient.add_(all.gradient(of_texts));
    if (figures) *figures = sums_of(in, found);
    return losses;
  }

  static std::vector<at::Tensor> sums_of(const LossInputs& in, const Finding& found) {
    const auto& [queries, positives, compared] = in.retrieval;
    const at::Tensor right = positives.unsqueeze(1), own = found.similarities.gather(1, right),
                     others = compared.to(at::kDouble) - places_of(positives, compared.size(1)).to(at::kDouble);
    const at::Tensor negatives = others.sum(1);
    const at::Tensor nearer = (found.similarities.ge(own).to(at::kDouble) * others).sum(1); // a tie is not right
    const auto sum = [&](const at::Tensor& of_queries) { return (of_queries * in.used_pairs).sum(); };
    return {sum(nearer.eq(0)), sum(own.squeeze(1)), sum((found.similarities * others).sum(1) / negatives.clamp_min(1)),
            sum(negatives)};
  }

  const Contrastive& term_;
};

} // namespace

std::unique_ptr<Loss> contrastive_loss(const plan::ObjectiveTerm& term) {
  return std::make_unique<ContrastiveLoss>(static_cast<const Contrastive&>(term));
}

} // namespace fvlm::objective
