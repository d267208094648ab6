#include "bench/training.h"

#include "model/loading.h"
#include "objective/next_token/settings.h"
#include "quantize/quantize_model.h"
#include "train/initial_model.h"
#include "train/step_flops.h"

#include <algorithm>
#include <limits>

namespace fvlm::bench {

plan::Plan synthetic_plan(const TrainingSetting& setting, int64_t image_size, int64_t frames, int64_t text) {
  plan::Plan plan;
  plan.name = "bench";
  plan.precision = setting.precision;
  plan.gradients = setting.gradients;
  plan.deterministic = setting.deterministic;
  plan.speed = setting.speed;
  plan.model.image_size = image_size;
  if (!setting.kernels.empty())
    for (auto& [kind, preferred] : plan.kernels.preferences) preferred = setting.kernels;
  plan::Stage& stage = plan.stages.emplace_back();
  stage.name = "bench";
  plan::Source& source = stage.data.sources.emplace_back();
  (frames > 0 ? source.shards : source.text) = {"made"};
  stage.data.max_frames = frames;
  stage.data.max_text_tokens = text;
  objective::NextToken next_token;
  next_token.on = plan::LossOn::all;
  stage.objective = {next_token};
  plan::AdamW adamw;
  adamw.lr = {{"default", setting.rate}};
  adamw.moments = setting.moments;
  stage.optimizer = adamw;
  stage.freeze = setting.freeze;
  stage.samples = std::numeric_limits<int64_t>::max();
  return plan;
}

DType stored_type(const std::string& dtype) {
  return dtype == "bf16" ? DType::bf16 : DType::f32;
}

const std::filesystem::path& SyntheticModels::of(const Shape& shape) {
  auto& folder = folders_[shape.name];
  if (folder.empty()) make_model(shape, folder = scratch_.path() / shape.name, dtype_);
  return folder;
}

const std::filesystem::path& SyntheticModels::quantized(const Shape& shape, Registry& registry) {
  auto& folder = folders_[std::string(shape.name) + " int4"];
  if (!folder.empty()) return folder;
  folder = scratch_.path() / (std::string(shape.name) + "-int4");
  const quantize::QuantizeRequest request{of(shape),    folder, {"int4", {"connector.*", "vision.*"}},
                                          std::nullopt, {},     {}};
  quantize::quantize_model(request, registry, [](uint64_t, uint64_t) {});
  return folder;
}

Training::Training(const plan::Plan& plan, Registry& registry, at::Device device, const std::filesystem::path& model,
                   const PackSize& capacity, int64_t max_samples, const train::Sharing& sharing,
                   const ops::ContextGroup& context, int64_t packs)
    : plan_(plan), operations_(train::make_operations(plan, registry, device, context)),
      capacity_(train::max_capacity_of(plan, plan.stages.front(), capacity, max_samples)) {
  const ModelDirectory directory = ModelDirectory::open(model);
  ModelDescription description = directory.description();
  budget::add_adapters(plan.model, description);
  const train::MakeModel load = [&](const model::ArenaOptions& options) {
    return plan.model.adapters ? train::make_from(directory, description, 0, options)
                               : model::load_model(directory, options);
  };
  stage_ = train::make_stage_model(plan, plan.stages.front(), registry, device, load, load, sharing);
  const plan::Stage& stage = plan.stages.front();
  const bool caches_reference = stage.uses(plan::ObjectiveTerm::Reference::cached);
  if (caches_reference || stage.caches_teacher()) order_.emplace(Order::once({max_samples * packs}));
  if (caches_reference)
    stage_.frozen.cache = std::make_shared<train::ReferenceLogProbCache>(*order_, std::filesystem::path());
  if (stage.caches_teacher())
    stage_.frozen.teacher_cache = std::make_shared<train::TeacherRowCache>(*order_, std::filesystem::path());
  gradient_computer_ = gradient_computer_for(plan);
}

std::unique_ptr<train::GradientComputer> Training::gradient_computer_for(const plan::Plan& plan) {
  return std::make_unique<train::GradientComputer>(plan, plan.stages.front(), *stage_.model, *operations_, capacity_,
                                                   stage_.frozen);
}

void Training::forward_backward(train::GradientComputer::StagedPack& pack, PartTimes& times) {
  train::GradientReduction* reduction = stage_.optimization->reduction();
  if (reduction) reduction->begin_step(1);
  gradient_computer_->begin_step();
  gradient_computer_->forward_backward(pack, times, reduction);
  if (reduction) reduction->finish();
}

double Training::flops(std::span<const std::shared_ptr<const Sample>> samples) const {
  const train::StepFlops flops(plan_, plan_.stages.front(), *stage_.model, *stage_.optimization, stage_.frozen.models);
  return flops.of(samples, gradient_computer_->encoded_frames());
}

void Training::optimize(bool captured) {
  train::Optimization& optimization = *stage_.optimization;
  optimization.step(optimization.base_rates(), 1, plan::common(plan_.stages.front().optimizer).clip,
                    gradient_computer_->sums(), captured);
}

double Training::loss() const {
  return loss(numbers());
}

double Training::loss(const train::AsyncReadback& numbers) const {
  const plan::Stage& stage = plan_.stages.front();
  const auto terms = train::GradientComputer::read_sums(numbers.read().front(), stage);
  double loss = 0;
  for (size_t i = 0; i < terms.size(); ++i) loss += stage.objective[i]->weight.at(0) * terms[i].loss / terms[i].count;
  return loss;
}

std::vector<std::string> Training::choices() const {
  std::vector<std::string> choices;
  const auto add = [&](const std::string& text) {
    if (std::find(choices.begin(), choices.end(), text) == choices.end()) choices.push_back(text);
  };
  for (const auto& report : operations_->choices()) add(report.text());
  for (const auto& report : stage_.optimization->choices()) add(report.text());
  return choices;
}

} // namespace fvlm::bench
