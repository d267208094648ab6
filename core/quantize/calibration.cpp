#include "quantize/calibration.h"

#include "base/error.h"
#include "budget/parameter_groups.h"
#include "evaluation/evaluator.h"

#include <ATen/ops/zeros_like.h>

#include <algorithm>
#include <memory>

namespace fvlm::quantize {
namespace {

// Sums products of the inputs of each linear. The rows of a pack's padding count as well: they are few.
class MomentSums {
 public:
  explicit MomentSums(ops::Operations& ops) : ops_(ops) {
    ops_.observe_linears([this](const ops::Weight& weight, const at::Tensor& x) { add(weight, x); });
  }
  ~MomentSums() { ops_.observe_linears({}); }
  MomentSums(const MomentSums&) = delete;
  MomentSums& operator=(const MomentSums&) = delete;

  Calibration means() const {
    std::map<const Sums*, InputMoments> means;
    Calibration all;
    for (const auto& [name, sums] : all_) {
      auto& mean = means[sums.get()];
      const auto rows = static_cast<double>(std::max<int64_t>(1, sums->rows));
      if (!mean.squares.defined()) {
        mean.squares = (sums->squares / rows).cpu();
        if (sums->products.defined()) mean.products = (sums->products / rows).cpu();
      }
      all[name] = mean;
    }
    return all;
  }

 private:
  struct Sums {
    at::Tensor squares, products;
    int64_t rows = 0;
  };

  // The parts of a weight that are read as one have the same inputs. Experts are thousands, of few rows each.
  void add(const ops::Weight& weight, const at::Tensor& x) {
    if (is_of_expert(weight.parts().front()->name)) return;
    std::shared_ptr<Sums> sums;
    for (const ops::Parameter* part : weight.parts()) {
      auto& of_part = all_[budget::directory_name(part->name)];
      if (!sums) sums = of_part ? of_part : std::make_shared<Sums>();
      if (!of_part) of_part = sums;
    }
    const at::Tensor wide = x.to(at::kFloat), squares = wide.square().sum(0);
    if (!sums->squares.defined()) sums->squares = at::zeros_like(squares);
    if (sums->squares.sizes() != squares.sizes()) return; // columns are padded: no linear that is quantized
    sums->squares.add_(squares);
    sums->rows += x.size(0);
    if (x.size(1) > max_moment_columns) return;
    const at::Tensor products = wide.t().matmul(wide);
    if (sums->products.defined())
      sums->products.add_(products);
    else
      sums->products = products;
  }

  ops::Operations& ops_;
  std::map<std::string, std::shared_ptr<Sums>> all_;
};

const plan::Stage& stage_of(const plan::Plan& plan, const std::string& trained) {
  const plan::Stage* last = nullptr;
  for (const plan::Stage& stage : plan.stages) {
    if (!stage.needs_pairs()) last = &stage;
    if (stage.name == trained && last) return *last;
  }
  if (last) return *last;
  throw Error(ErrorKind::recipe, "every stage of the recipe has pairs of texts, and calibration reads single ones")
      .at("stages")
      .advise("calibrate with the recipe of an earlier stage");
}

} // namespace

Calibration calibrate(const plan::Plan& plan, const std::string& trained, int64_t samples, model::Model& model,
                      ops::Operations& ops, Registry& registry, const CalibrationProgress& progress) {
  plan::Stage stage = stage_of(plan, trained);
  plan::EvaluationSet set;
  set.name = "calibration";
  set.data = stage.data;
  set.modes = {stage.mode};
  set.samples = samples;
  stage.evaluation.sets = {set};
  plan::Plan without_stages = plan; // or it would warn that these samples are not held out
  without_stages.stages.clear();
  const evaluation::Evaluator evaluator(without_stages, stage, registry);
  const MomentSums sums(ops);
  evaluator.evaluate(model, ops, [&](const evaluation::EvaluationState& state) { progress(state.done, state.all); });
  return sums.means();
}

} // namespace fvlm::quantize
