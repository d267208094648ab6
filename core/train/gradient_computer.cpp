#include "train/gradient_computer.h"

#include "objective/labels.h"
#include "train/async_readback.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>

#include <algorithm>

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
    for (size_t decoder = 0; decoder < policy.decoders(); ++decoder)
      for (size_t term = 0; term < stage.objective.size(); ++term) {
        if (!stage.objective[term]->caches_teacher()) continue;
        const Sample& own = *for_decoder(packed.sample, decoder);
        const int64_t count = objective::label_count(own, stage.objective[term]->labels()),
                      width = frozen.models.teacher(term, policy.with_decoder(decoder)).config().decoder.hidden_size;
        rows.push_back(at::zeros({count, width}, policy.parameters().trained().scalar_type()));
      }
    frozen.teacher_cache->insert(packed, std::move(rows));
  }
  return frozen;
}

struct GradientComputer::StagedPack {
  std::vector<StagedInputs> places; // by decoder
  bool measure_attention = false;
  struct Captured {
    ops::GraphCache graph;
    std::vector<bool> gradients_after; // which parameters have a gradient when it is done
  };
  // By which have one before, and whether the pass reduces them.
  std::map<std::pair<std::vector<bool>, bool>, Captured> passes;
};

// A pack that frozen models read before training.
struct GradientComputer::FrozenPack {
  std::vector<StagedInputs> places; // by decoder
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
      builder_(plan, stage, policy, operations.tensor_options(), max, operations.options().context), policy_(policy),
      ops_(operations), frozen_(std::move(frozen)), drops_(model::has_dropout(policy.config().adapters)),
      dropout_(static_cast<uint64_t>(plan.seed), "dropout " + stage.name),
      captures_(plan.speed.graphs && device::runtime() && operations.options().context.is_capturable()) {
  const int64_t size = plan.model.image_size;
  const auto on_device = at::TensorOptions(ops_.options().device).dtype(at::kDouble);
  if (device::Runtime* gpu = device::runtime())
    staging_ = std::make_unique<InputStaging>(
        *gpu, ops_.options().device, std::vector<int64_t>{max.frames, 3, size, size}, plan.speed.overlap_copies);
  const int64_t rows = static_cast<int64_t>(policy.decoders()) * std::ssize(stage_.objective);
  sums_.terms = at::zeros({rows, objective_.columns()}, on_device);
  sums_.attention_entropy = at::zeros({}, on_device);
  begin_step();
}

GradientComputer::~GradientComputer() = default;

void GradientComputer::begin_step() {
  policy_.parameters().reset_gradients();
  sums_.terms.zero_();
  counted_ = 0;
  encoded_frames_ = used_rows_ = all_rows_ = 0;
  measured_attention_ = false;
}

std::shared_ptr<GradientComputer::StagedPack> GradientComputer::stage(const HostPack& host, const StepCounts& counts,
                                                                      double scale, bool measure_attention) {
  std::vector<BuiltPass> built;
  for (size_t decoder = 0; decoder < policy_.decoders(); ++decoder) {
    BuiltPass& own = built.emplace_back(builder_.build(host, decoder, counts, scale));
    counted_ += own.counted;
    if (decoder == 0) encoded_frames_ += own.encoded_frames; // once for all decoders
    used_rows_ += own.used_rows;
    all_rows_ += own.all_rows;
    if (frozen_.cache) own.inputs.reference_log_probs = cached_log_probs(host, own.inputs.used_pairs.size(0));
    if (frozen_.teacher_cache) add_cached_rows(host, decoder, own.inputs);
  }
  measure_attention =
      measure_attention && policy_.connector().has_attention() && built.front().inputs.pack.frames_used > 0;
  measured_attention_ = measured_attention_ || measure_attention;
  auto staged = std::make_shared<StagedPack>();
  if (staging_) {
    auto key = shape_keys(built);
    key.push_back(measure_attention);
    auto& known = staged_[key];
    if (!known) known = staged;
    staged = known;
  }
  staged->measure_attention = measure_attention;
  put_in_place(std::move(built), host, staged->places);
  return staged;
}

std::vector<int64_t> GradientComputer::shape_keys(std::vector<BuiltPass>& built) {
  std::vector<int64_t> key;
  for (BuiltPass& one : built) {
    const auto own = shape_key(one.inputs);
    key.insert(key.end(), own.begin(), own.end());
  }
  return key;
}

void GradientComputer::put_in_place(std::vector<BuiltPass> built, const HostPack& host,
                                    std::vector<StagedInputs>& places) {
  places.resize(built.size());
  for (size_t i = 0; i < built.size(); ++i)
    if (staging_)
      staging_->stage(std::move(built[i]), host.buffer, places[i]);
    else
      places[i].inputs = on_device(std::move(built[i]), ops_.options().device);
}

void GradientComputer::forward_backward(StagedPack& staged, PartTimes& times, GradientReduction* reduction) {
  model::Parameters& parameters = policy_.parameters();
  const auto before = parameters.gradient_flags();
  auto& [graph, after] =
      staged.passes.try_emplace({before, reduction != nullptr}, StagedPack::Captured{{"the model", captures_}, {}})
          .first->second;
  const bool ran = graph.run([this, &staged, &times, reduction, before] {
    policy_.parameters().set_gradient_flags(before);
    if (reduction) reduction->begin_pass();
    const objective::PassSums sums{sums_.terms, staged.measure_attention ? sums_.attention_entropy : at::Tensor()};
    objective::DecoderPasses passes;
    for (const StagedInputs& place : staged.places) passes.push_back(&place.inputs);
    objective_.forward_backward(ops_, policy_, frozen_.models, passes, sums, times, reduction);
    if (reduction) reduction->end_pass();
  });
  if (reduction) reduction->set_done(ran);
  if (ran)
    after = parameters.gradient_flags();
  else
    parameters.set_gradient_flags(after);
  kernels_ = graph.kernels();
  if (!ran) times.add_elapsed("graph");
}

void GradientComputer::forward_backward(const HostPack& host, const StepCounts& counts, double scale, PartTimes& times,
                                        bool measure_attention, GradientReduction* reduction) {
  if (host.samples.empty()) return;
  if (drops_) policy_.set_dropout_seed(dropout_.bits(static_cast<uint64_t>(host.samples.front().position)));
  const auto staged = stage(host, counts, scale, measure_attention);
  times.add_elapsed("data");
  forward_backward(*staged, times, reduction);
}

void GradientComputer::cache_reference(const HostPack& host, const model::Model& reference) {
  const auto make = [this, &reference](const std::vector<StagedInputs>& places) {
    return std::vector<at::Tensor>{objective_.reference_log_probs(ops_, reference, places.front().inputs)};
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
  const auto make = [this](const std::vector<StagedInputs>& places) {
    std::vector<at::Tensor> rows;
    for (size_t decoder = 0; decoder < places.size(); ++decoder)
      for (size_t term = 0; term < stage_.objective.size(); ++term)
        if (stage_.objective[term]->caches_teacher())
          rows.push_back(objective_.teacher_hidden(ops_, policy_.with_decoder(decoder), frozen_.models,
                                                   places[decoder].inputs, term));
    return rows;
  };
  compute_once(FrozenRead::teachers, host, make, [this](const auto& samples, const auto& outputs) {
    std::vector<int64_t> begins(outputs.size());
    for (const PackedSample& packed : samples) {
      TeacherRowCache::Rows rows;
      for (size_t decoder = 0; decoder < policy_.decoders(); ++decoder)
        for (const plan::Term& term : stage_.objective) {
          if (!term->caches_teacher()) continue;
          const int64_t count = objective::label_count(*for_decoder(packed.sample, decoder), term->labels());
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
  std::vector<BuiltPass> built;
  for (size_t decoder = 0; decoder < policy_.decoders(); ++decoder)
    built.push_back(builder_.build_to_read(host, decoder));
  auto key = shape_keys(built);
  key.push_back(static_cast<int64_t>(which));
  auto& pack = frozen_packs_[key];
  if (!pack) pack = std::make_shared<FrozenPack>(FrozenPack{{}, {}, {"a frozen model", captures_}});
  put_in_place(std::move(built), host, pack->places);
  pack->graph.run([&make, &pack = *pack] {
    const auto made = make(pack.places);
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

at::Tensor GradientComputer::cached_log_probs(const HostPack& host, int64_t pairs) const {
  std::vector<double> sums;
  for (const PackedSample& packed : host.samples) {
    const auto& pair = frozen_.cache->at(packed);
    sums.insert(sums.end(), {pair.chosen, pair.rejected});
  }
  sums.resize(static_cast<size_t>(2 * pairs));
  return at::tensor(sums, at::kDouble);
}

void GradientComputer::add_cached_rows(const HostPack& host, size_t decoder, objective::PassInputs& inputs) const {
  const auto cached =
      std::ranges::count_if(stage_.objective, [](const plan::Term& term) { return term->caches_teacher(); });
  size_t place = decoder * static_cast<size_t>(cached); // among the rows of the decoders' terms
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
  for (int64_t i = 0; i < sums.size(0); ++i, row += sums.size(1)) {
    const plan::Term& term = stage.objective[static_cast<size_t>(i) % stage.objective.size()];
    all.push_back({row[0], row[1], {row + 2, row + 2 + term->figures().size()}});
  }
  return all;
}

} // namespace fvlm::train
