// One term of a stage's objective: what a recipe sets, which tokens the term learns from, what the trainer has to
// provide for it, and which figures it reports. The objectives themselves are in core/objective/.
#pragma once
#include "base/polymorphic.h"
#include "recipe/curve.h"
#include "recipe/rollouts.h"

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace fvlm::plan {

enum class LossOn { all, answer };

// Which tokens of a text are labels; `first`: only so many of each span.
struct LabelSelection {
  LossOn on = LossOn::answer;
  std::optional<int64_t> first;
  // Of a span's first, second, ... label in the term's weighted mean; further labels have the last weight. Absent: 1.
  std::optional<std::vector<double>> position_weights = {};
};

// What evaluations that compare preferences call rewards: beta times how much likelier than the reference the model
// finds a text.
struct PreferenceRewards {
  double beta = 0.1;
  bool of_means = false; // of mean log-probabilities of a text's labels, not of their sums
};

class ObjectiveTerm {
 public:
  // Where a term gets the log-probabilities of the model that its stage starts from.
  enum class Reference {
    none,
    live,  // that model stays in memory, frozen, and reads every pack
    cached // computed once before training and kept in the run's folder
  };

  ObjectiveTerm() = default;
  ObjectiveTerm(const ObjectiveTerm&) = default;
  ObjectiveTerm(ObjectiveTerm&&) = default;
  ObjectiveTerm& operator=(const ObjectiveTerm&) = default;
  ObjectiveTerm& operator=(ObjectiveTerm&&) = default;
  virtual ~ObjectiveTerm() = default;
  virtual std::unique_ptr<ObjectiveTerm> clone() const = 0;

  // The constructor in a recipe, "dpo", and the name in metrics, which may tell variants apart.
  virtual std::string_view name() const = 0;
  virtual std::string metric() const { return std::string(name()); }
  // Further figures besides the loss, in the order of Loss::compute: each a mean over what the loss is a mean over.
  virtual std::vector<std::string> figures() const { return {}; }

  // All that are labels at any point of the stage; and those at one.
  virtual LabelSelection labels() const = 0;
  virtual LabelSelection labels_at(double /*progress*/) const { return labels(); }
  // Data are pairs of a chosen and a rejected text, and the loss is a mean over pairs, not over labels.
  virtual bool needs_pairs() const { return false; }
  // Data are single answers, each said to be good or not. In a pack each is the first of a pair, whose second text is
  // its prompt with the answer of another sample.
  virtual bool needs_judgements() const { return false; }
  // Data are retrieval samples: the term needs pairs, a query and what it is to find, and compares the final hidden
  // states of a pack's texts with each other. So a pack is never divided.
  virtual bool embeds() const { return false; }
  // Whether the loss is a sum over labels of what each row predicts alone, so that ranks may have a part of the rows
  // each.
  virtual bool is_sum_over_labels() const { return false; }
  // The loss is a mean over texts of each text's mean over its labels, not a mean over all labels.
  virtual bool averages_texts() const { return false; }
  // How answers are sampled from the model, which the term learns from in place of the data's; null: it learns from the
  // data's.
  virtual const Rollouts* rollouts() const { return nullptr; }
  // The recipe's function that is called for the term; null: there is none.
  virtual LuaFunction* function() { return nullptr; }
  // The loss is a mean over the texts with at least so many visual rows, not over labels; 0: over labels.
  virtual int64_t min_visual_rows() const { return 0; }
  // The connector's view of a frame that the text is read behind; empty: the connector's own choice.
  virtual std::string view() const { return ""; }
  virtual Reference reference() const { return Reference::none; }
  // A frozen model of its own that reads the same packs: its folder, or the stage that left it (names_stage.h).
  virtual const std::string* teacher() const { return nullptr; }
  // Whether the teacher reads a text of its own, Mix::teacher_prompt with the same answer, and no frames. Without
  // teacher(), the model itself is the teacher, as it is in that step and without gradients.
  virtual bool reads_teacher_prompt() const { return false; }
  // Whether the teacher's hidden states are computed once before training and kept in the run's folder.
  virtual bool caches_teacher() const { return false; }
  // The rewards of evaluations that compare preferences.
  virtual std::optional<PreferenceRewards> rewards() const { return {}; }

  Curve weight; // factor on the term in the sum, in the course of the stage
};

// A term with the keys of a LabelSelection, of which `first` may change in the course of the stage, rounded.
class LabelTerm : public ObjectiveTerm {
 public:
  LabelSelection labels() const override;
  LabelSelection labels_at(double progress) const override;

  LossOn on = LossOn::answer;
  std::optional<Curve> first;
  std::optional<std::vector<double>> position_weights;
};

using Term = Polymorphic<ObjectiveTerm>;

} // namespace fvlm::plan
