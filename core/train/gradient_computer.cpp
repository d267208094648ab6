#include "train/gradient_computer.h"

#include "objective/labels.h"
#include "train/async_readback.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>

namespace fvlm::train {

Frozen with_empty_caches(Frozen frozen, const plan::Stage& stage, const model::Model& policy, const Order& order,
                         const HostPack& host) {
  if (stage.uses(plan::ObjectiveTerm::Reference::cached)) {
    frozen.cache = std::make_shared<ReferenceLogProbCache>(order, std::filesystem::path());
    for (const PackedSample& pair : host.samples) frozen.cache->insert(pair, {});
  }
  if (!stage.caches_teacher()) return frozen;
  frozen.teacher_cache = std::make_shared<TeacherRowCache>(order, std::filesystem::path());
  for (const PackedSample& packed : host.samples) {
    TeacherRowCache::Rows rows;
    for (size_t term = 0; term < stage.objective.size(); ++term) {
      if (!stage.objective[term]->caches_teacher()) continue;
      const int64_t count = objective::label_count(*packed.sample, stage.objective[term]->labels()),
                    width = frozen.models.teacher(term, policy).config().decoder.hidden_size;
      rows.push_back(at::zeros({count, width}, policy.parameters().trained().scalar_type()));
    }
    frozen.teacher_cache->insert(packed, std::move(rows));
  }
  return frozen;
}

struct GradientComputer::StagedPack {
  StagedInputs place;
  bool measure_attention = false;
  struct Captured {
    ops::GraphCache graph;
    std::vector<bool> gradients_after; // which parameters have a gradient when it is done
  };
  std::map<std::vector<bool>, Captured> passes; // by which have one before
};

// A pack that frozen models read before training.
struct GradientComputer::FrozenPack {
  StagedInputs place;
  std::vector<at::Tensor> outputs;
  ops::GraphCache graph;
};

struct GradientComputer::PendingOutputs {
  std::vector<PackedSample> samples;
  AsyncReadback outputs;
  TakeOutputs take;
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
  if (frozen_.teacher_cache) add_cached_rows(host, built.inputs);
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
  const auto make = [this, &reference](const objective::PassInputs& in) {
    return std::vector<at::Tensor>{objective_.reference_log_probs(ops_, reference, in)};
  };
  compute_once(FrozenRead::reference, host, make, [this](const auto& pairs, const auto& outputs) {
    const double* sum = outputs.front().template const_data_ptr<double>();
    for (const PackedSample& pair : pairs) {
      frozen_.cache->insert(pair, {sum[0], sum[1]});
      sum += 2;
    }
  });
}

void GradientComputer::cache_teachers(const HostPack& host) {
  const auto make = [this](const objective::PassInputs& in) {
    std::vector<at::Tensor> rows;
    for (size_t term = 0; term < stage_.objective.size(); ++term)
      if (stage_.objective[term]->caches_teacher())
        rows.push_back(objective_.teacher_hidden(ops_, policy_, frozen_.models, in, term));
    return rows;
  };
  compute_once(FrozenRead::teachers, host, make, [this](const auto& samples, const auto& outputs) {
    std::vector<int64_t> begins(outputs.size());
    for (const PackedSample& packed : samples) {
      TeacherRowCache::Rows rows;
      for (const plan::Term& term : stage_.objective) {
        if (!term->caches_teacher()) continue;
        const int64_t count = objective::label_count(*packed.sample, term->labels());
        int64_t& begin = begins[rows.size()];
        rows.push_back(outputs[rows.size()].narrow(0, begin, count).clone());
        begin += count;
      }
      frozen_.teacher_cache->insert(packed, std::move(rows));
    }
  });
}

void GradientComputer::compute_once(FrozenRead which, const HostPack& host, const MakeOutputs& make, TakeOutputs take) {
  if (host.samples.empty()) return;
  BuiltPass built = builder_.build_to_read(host);
  auto key = shape_key(built.inputs);
  key.push_back(static_cast<int64_t>(which));
  auto& pack = frozen_packs_[key];
  if (!pack) pack = std::make_shared<FrozenPack>(FrozenPack{{}, {}, {"a frozen model", captures_}});
  if (staging_)
    staging_->stage(std::move(built), host.buffer, pack->place);
  else
    pack->place.inputs = on_device(std::move(built), ops_.options().device);
  pack->graph.run([&make, &pack = *pack] {
    const auto made = make(pack.place.inputs);
    if (pack.outputs.empty()) {
      for (const at::Tensor& output : made) pack.outputs.push_back(output.clone());
      return;
    }
    for (size_t i = 0; i < made.size(); ++i) pack.outputs[i].copy_(made[i]);
  });
  auto pending =
      std::make_unique<PendingOutputs>(PendingOutputs{host.samples, AsyncReadback(pack->outputs), std::move(take)});
  collect_outputs(); // of the previous pack, while the device computes this one
  pending_ = std::move(pending);
  if (!staging_ || !staging_->overlap()) collect_outputs();
  if (!staging_) frozen_packs_.clear();
}

void GradientComputer::collect_outputs() {
  if (!pending_) return;
  const auto pending = std::move(pending_);
  pending->take(pending->samples, pending->outputs.read());
}

void GradientComputer::finish_caching() {
  collect_outputs();
  frozen_packs_.clear();
}

at::Tensor GradientComputer::cached_log_probs(const HostPack& host) const {
  std::vector<double> sums;
  for (const PackedSample& packed : host.samples) {
    const auto& pair = frozen_.cache->at(packed);
    sums.insert(sums.end(), {pair.chosen, pair.rejected});
  }
  return at::tensor(sums, at::kDouble);
}

void GradientComputer::add_cached_rows(const HostPack& host, objective::PassInputs& inputs) const {
  size_t place = 0; // among the terms whose teacher is cached
  for (size_t term = 0; term < stage_.objective.size(); ++term) {
    if (!stage_.objective[term]->caches_teacher()) continue;
    objective::ComparedLabels& compared = inputs.compared.at(term);
    int64_t begin = 0;
    for (const PackedSample& packed : host.samples) {
      const at::Tensor& rows = frozen_.teacher_cache->at(packed).at(place);
      if (!compared.cached.defined())
        compared.cached = at::zeros({compared.rows.size(0), rows.size(1)}, rows.options());
      compared.cached.narrow(0, begin, rows.size(0)).copy_(rows);
      begin += rows.size(0);
    }
    compared.teacher_rows.reset(); // of a pass that is not computed
    ++place;
  }
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
