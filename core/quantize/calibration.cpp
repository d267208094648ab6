#include "quantize/calibration.h"

#include "base/error.h"
#include "budget/parameter_groups.h"
#include "evaluation/evaluator.h"

#include <ATen/ops/zeros_like.h>

#include <algorithm>

namespace fvlm::quantize {
namespace {

// Sums the squares of the inputs of each linear. The rows of a pack's padding count as well: they are few.
class SquareSums {
 public:
  explicit SquareSums(ops::Operations& ops) : ops_(ops) {
    ops_.observe_linears([this](const ops::Weight& weight, const at::Tensor& x) { add(weight, x); });
  }
  ~SquareSums() { ops_.observe_linears({}); }
  SquareSums(const SquareSums&) = delete;
  SquareSums& operator=(const SquareSums&) = delete;

  Importance means() const {
    Importance means;
    for (const auto& [name, sums] : all_)
      means[name] = (sums.squares / static_cast<double>(std::max<int64_t>(1, sums.rows))).cpu();
    return means;
  }

 private:
  struct Sums {
    at::Tensor squares;
    int64_t rows = 0;
  };

  void add(const ops::Weight& weight, const at::Tensor& x) {
    const at::Tensor squares = x.to(at::kFloat).square().sum(0);
    for (const ops::Parameter* part : weight.parts()) {
      Sums& sums = all_[budget::directory_name(part->name)];
      if (!sums.squares.defined()) sums.squares = at::zeros_like(squares);
      if (sums.squares.sizes() != squares.sizes()) continue; // columns are padded: no linear that is quantized
      sums.squares.add_(squares);
      sums.rows += x.size(0);
    }
  }

  ops::Operations& ops_;
  std::map<std::string, Sums> all_;
};

const plan::Stage& stage_of(const plan::Plan& plan) {
  for (const plan::Stage& stage : plan.stages)
    if (!stage.needs_pairs()) return stage;
  throw Error(ErrorKind::recipe, "every stage of the recipe has pairs of texts, and calibration reads single ones")
      .at("stages")
      .advise("calibrate with the recipe of an earlier stage");
}

} // namespace

Importance calibrate(const plan::Plan& plan, int64_t samples, model::Model& model, ops::Operations& ops,
                     Registry& registry, const CalibrationProgress& progress) {
  plan::Stage stage = stage_of(plan);
  plan::EvaluationSet set;
  set.name = "calibration";
  set.data = stage.data;
  set.modes = {stage.mode};
  set.samples = samples;
  stage.evaluation.sets = {set};
  const evaluation::Evaluator evaluator(plan, stage, registry);
  const SquareSums sums(ops);
  evaluator.evaluate(model, ops, [&](const evaluation::EvaluationState& state) { progress(state.done, state.all); });
  return sums.means();
}

} // namespace fvlm::quantize
