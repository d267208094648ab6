#include "train/gradient_computer.h"

#include "train/async_readback.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>

namespace fvlm::train {

struct GradientComputer::StagedPack {
  StagedInputs place;
  bool measure_attention = false;
  struct Captured {
    GraphCache graph;
    std::vector<bool> gradients_after; // which parameters have a gradient when it is done
  };
  std::map<std::vector<bool>, Captured> passes; // by which have one before
};

// A pack that the reference reads.
struct GradientComputer::ReferencePack {
  StagedInputs place;
  at::Tensor log_probs; // float64 [2 pairs]
  GraphCache graph;
};

struct GradientComputer::PendingLogProbs {
  std::vector<PackedSample> pairs;
  AsyncReadback sums; // float64 [2 pairs]
};

GradientComputer::GradientComputer(const plan::Plan& plan, const plan::Stage& stage, model::Model& policy,
                                   ops::Operations& operations, const model::Capacity& max, Frozen frozen)
    : stage_(stage), objective_(stage.objective, stage.mode),
      builder_(plan, stage, policy, operations.tensor_options(), max), policy_(policy), ops_(operations),
      frozen_(std::move(frozen)), captures_(plan.speed.graphs && device::runtime()) {
  const int64_t size = plan.model.image_size;
  const auto on_device = at::TensorOptions(ops_.options().device).dtype(at::kDouble);
  if (device::Runtime* gpu = device::runtime())
    staging_ = std::make_unique<InputStaging>(
        *gpu, ops_.options().device, std::vector<int64_t>{max.frames, 3, size, size}, plan.speed.overlap_copies);
  sums_.terms = at::zeros({std::ssize(stage_.objective), objective_.columns()}, on_device);
  sums_.attention_entropy = at::zeros({}, on_device);
  begin_step();
}

GradientComputer::~GradientComputer() = default;

void GradientComputer::begin_step() {
  policy_.parameters().reset_gradients();
  sums_.terms.zero_();
  counted_ = 0;
  used_rows_ = all_rows_ = 0;
  measured_attention_ = false;
}

std::shared_ptr<GradientComputer::StagedPack> GradientComputer::stage(const HostPack& host, const StepCounts& counts,
                                                                      double scale, bool measure_attention) {
  BuiltPass built = builder_.build(host, counts, scale);
  counted_ += built.counted;
  used_rows_ += built.used_rows;
  all_rows_ += built.all_rows;
  if (frozen_.cache) built.inputs.reference_log_probs = cached_log_probs(host);
  measure_attention = measure_attention && policy_.connector().has_attention() && built.inputs.pack.frames_used > 0;
  measured_attention_ = measured_attention_ || measure_attention;
  if (!staging_) {
    auto staged = std::make_shared<StagedPack>();
    staged->place.inputs = on_device(std::move(built), ops_.options().device);
    staged->measure_attention = measure_attention;
    return staged;
  }
  auto key = shape_key(built.inputs);
  key.push_back(measure_attention);
  auto& staged = staged_[key];
  if (!staged) staged = std::make_shared<StagedPack>();
  staged->measure_attention = measure_attention;
  staging_->stage(std::move(built), host.buffer, staged->place);
  return staged;
}

void GradientComputer::forward_backward(StagedPack& staged, PartTimes& times) {
  model::Parameters& parameters = policy_.parameters();
  const auto before = parameters.gradient_flags();
  auto& [graph, after] =
      staged.passes.try_emplace(before, StagedPack::Captured{{"the model", captures_}, {}}).first->second;
  const bool ran = graph.run([this, &staged, &times, before] {
    policy_.parameters().set_gradient_flags(before);
    const objective::PassSums sums{sums_.terms, staged.measure_attention ? sums_.attention_entropy : at::Tensor()};
    objective_.forward_backward(ops_, policy_, frozen_.models, staged.place.inputs, sums, times);
  });
  if (ran)
    after = parameters.gradient_flags();
  else
    parameters.set_gradient_flags(after);
  kernels_ = graph.kernels();
  if (!ran) times.add_elapsed("graph");
}

void GradientComputer::forward_backward(const HostPack& host, const StepCounts& counts, double scale, PartTimes& times,
                                        bool measure_attention) {
  if (host.samples.empty()) return;
  const auto staged = stage(host, counts, scale, measure_attention);
  times.add_elapsed("data");
  forward_backward(*staged, times);
}

void GradientComputer::cache_reference(const HostPack& host, const model::Model& reference) {
  if (host.samples.empty()) return;
  BuiltPass built = builder_.build_to_read(host);
  auto& pack = reference_packs_[shape_key(built.inputs)];
  const at::Device device = ops_.options().device;
  if (!pack) {
    const auto log_probs = at::zeros({2 * built.inputs.pairs}, at::TensorOptions(device).dtype(at::kDouble));
    pack = std::make_shared<ReferencePack>(ReferencePack{{}, log_probs, {"the reference", captures_}});
  }
  if (staging_)
    staging_->stage(std::move(built), host.buffer, pack->place);
  else
    pack->place.inputs = on_device(std::move(built), device);
  pack->graph.run([this, &reference, &pack = *pack] {
    pack.log_probs.copy_(objective_.reference_log_probs(ops_, reference, pack.place.inputs));
  });
  auto pending = std::make_unique<PendingLogProbs>(PendingLogProbs{host.samples, AsyncReadback({pack->log_probs})});
  collect_log_probs(); // of the previous pack, while the device computes this one
  pending_ = std::move(pending);
  if (!staging_ || !staging_->overlap()) collect_log_probs();
  if (!staging_) reference_packs_.clear();
}

void GradientComputer::collect_log_probs() {
  if (!pending_) return;
  const auto pending = std::move(pending_);
  const double* sum = pending->sums.read().front().const_data_ptr<double>();
  for (const PackedSample& pair : pending->pairs) {
    frozen_.cache->insert(pair, {sum[0], sum[1]});
    sum += 2;
  }
}

void GradientComputer::finish_caching() {
  collect_log_probs();
  reference_packs_.clear();
}

at::Tensor GradientComputer::cached_log_probs(const HostPack& host) const {
  std::vector<double> sums;
  for (const PackedSample& packed : host.samples) {
    const auto& pair = frozen_.cache->at(packed);
    sums.insert(sums.end(), {pair.chosen, pair.rejected});
  }
  return at::tensor(sums, at::kDouble);
}

std::vector<GradientComputer::TermSums> GradientComputer::read_sums(const at::Tensor& sums, const plan::Stage& stage) {
  const at::Tensor on_host = sums.cpu();
  const double* row = on_host.const_data_ptr<double>();
  std::vector<TermSums> all;
  for (const plan::Term& term : stage.objective) {
    all.push_back({row[0], row[1], {row + 2, row + 2 + term->figures().size()}});
    row += sums.size(1);
  }
  return all;
}

} // namespace fvlm::train
