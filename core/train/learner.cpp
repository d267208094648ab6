#include "train/learner.h"

#include "evaluation/score.h"
#include "model/objectives.h"
#include "model/size_class.h"
#include "train/labels.h"
#include "train/late.h"
#include "train/padding.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <numeric>

namespace fvlm::train {
namespace {

using ops::Tape, ops::Value, plan::is_coarse;

constexpr int64_t sums_per_term = 5; // the members of Tally

int64_t count(const std::vector<bool>& flags) {
  return std::count(flags.begin(), flags.end(), true);
}

} // namespace

double StepCounts::all_terms() const {
  return std::accumulate(of_term.begin(), of_term.end(), 0.0);
}

StepCounts counts_of(const plan::Stage& stage, std::span<const std::shared_ptr<const Sample>> samples) {
  StepCounts counts;
  counts.of_term.resize(stage.objective.size());
  counts.samples = static_cast<int64_t>(samples.size());
  for (const auto& sample : samples) {
    counts.frames += sample->frames;
    for (const SampleText& text : sample->texts) counts.text_tokens += static_cast<int64_t>(text.ids.size());
    for (size_t term = 0; term < stage.objective.size(); ++term) {
      if (std::holds_alternative<plan::Dpo>(stage.objective[term])) {
        ++counts.of_term[term];
        continue;
      }
      for (const SampleText& text : sample->texts)
        counts.of_term[term] += static_cast<double>(count(labels(text, stage.objective[term])));
    }
  }
  return counts;
}

std::vector<std::string> term_names(const plan::Stage& stage) {
  std::vector<std::string> names;
  std::map<std::string, int> seen;
  for (const plan::Term& term : stage.objective) {
    const std::string kind = std::holds_alternative<plan::Dpo>(term)  ? "dpo"
                             : std::holds_alternative<plan::Kl>(term) ? "kl"
                             : is_coarse(term)                        ? "next_token_coarse"
                                                                      : "next_token";
    const int number = ++seen[kind];
    names.push_back(number == 1 ? kind : fmt::format("{}_{}", kind, number));
  }
  return names;
}

// Everything that the passes read of a pack. A CUDA graph captured for one pack can be replayed for any pack whose
// inputs have the same shapes, so nothing else may depend on the pack.
struct Learner::Inputs {
  model::Pack pack;
  std::vector<at::Tensor> masks; // of a term: float32 [labels], 1 where it learns
  at::Tensor weights;            // float64 [terms]: of a label, or of a pair
  at::Tensor shares;             // float64 [frame slots]: of each frame in the mean over those that are used
  at::Tensor reference_logprobs; // float64 [2 pairs], from the cache
  at::Tensor frames;             // the pack's frames in the loader's host memory
  at::Tensor storage;            // the buffer that all other tensors are views of, on the device
  int64_t pairs = 0;

  std::vector<at::Tensor*> tensors() { // all but frames
    auto all = pack.tensors();
    std::erase(all, &pack.frames);
    const auto others = step_tensors();
    all.insert(all.end(), others.begin(), others.end());
    return all;
  }
  // Moves everything to `device`, into freshly allocated memory.
  Inputs on(at::Device device) && {
    for (at::Tensor* tensor : tensors())
      if (tensor->defined()) *tensor = tensor->to(device);
    if (frames.defined()) {
      auto shape = frames.sizes().vec();
      const int64_t used = shape[0], slots = shape[0] = shares.size(0);
      pack.frames = at::empty(shape, at::TensorOptions(device).dtype(at::kFloat));
      pack.frames.narrow(0, 0, used).copy_(frames);
      pack.frames.narrow(0, used, slots - used).zero_();
      frames.reset();
    }
    return std::move(*this);
  }
  // Copies all tensors but the frames into one host buffer, so that one copy brings them to the device.
  at::Tensor flatten(bool pinned) {
    const auto all = tensors();
    const auto begins = offsets(all);
    at::Tensor bytes = at::empty({begins.back()}, at::TensorOptions().dtype(at::kByte).pinned_memory(pinned));
    for (size_t i = 0; i < all.size(); ++i)
      if (all[i]->defined())
        std::memcpy(bytes.mutable_data_ptr<uint8_t>() + begins[i], all[i]->const_data_ptr(), all[i]->nbytes());
    return bytes;
  }
  void view_into(const at::Tensor& bytes) {
    storage = bytes;
    const auto all = tensors();
    const auto begins = offsets(all);
    for (size_t i = 0; i < all.size(); ++i) {
      at::Tensor& tensor = *all[i];
      if (!tensor.defined()) continue;
      const at::Tensor own = bytes.narrow(0, begins[i], static_cast<int64_t>(tensor.nbytes()));
      tensor = own.view(tensor.scalar_type()).view(tensor.sizes());
    }
  }
  std::vector<int64_t> key() {
    std::vector<int64_t> key = pack.shape();
    key.push_back(pairs);
    for (const at::Tensor* tensor : step_tensors()) model::append_shape(key, *tensor);
    return key;
  }

 private:
  std::vector<at::Tensor*> step_tensors() {
    std::vector<at::Tensor*> all{&weights, &shares, &reference_logprobs};
    for (at::Tensor& mask : masks) all.push_back(&mask);
    return all;
  }
  static std::vector<int64_t> offsets(const std::vector<at::Tensor*>& tensors) {
    constexpr int64_t aligned = 256;
    std::vector<int64_t> offsets{0};
    for (const at::Tensor* tensor : tensors) {
      const auto bytes = tensor->defined() ? static_cast<int64_t>(tensor->nbytes()) : 0;
      offsets.push_back(offsets.back() + (bytes + aligned - 1) / aligned * aligned);
    }
    return offsets;
  }
};

struct Learner::StagedPack {
  Inputs inputs; // keep their addresses, as captured graphs require
  bool measures_attention;
  struct CapturedPass {
    GraphCache graph;
    std::vector<bool> after; // which parameters have a gradient when the pass is done
  };
  std::map<std::vector<bool>, CapturedPass> passes; // by the parameters that have a gradient before the pass
};

struct Learner::ReferenceInputs {
  Inputs inputs;       // keep their addresses, as captured graphs require
  at::Tensor logprobs; // float64 [2 pairs]
  GraphCache graph;
};

struct Learner::PendingLogProbs {
  std::vector<PackedSample> pairs;
  Late sums; // float64 [2 pairs]
};

struct Learner::StepContext {
  const Inputs& in;
  PartTimes& times;
  model::Vlm::VisualTokens visual;
  Tape tape;

  // Starts a phase of the forward pass. The backward pass of this phase ends when the tape gets here.
  void begin_phase(const char* phase) {
    if (times.tells()) tape.push([&times = times, name = std::string(phase) + " backward"] { times.tell_of(name); });
  }

  at::Tensor weights(size_t term) const { return in.masks[term] * in.weights[static_cast<int64_t>(term)]; }
};

Learner::Learner(const plan::Plan& plan, const plan::Stage& stage, model::Vlm& policy, ops::Operations& operations,
                 const model::Capacity& max_capacity, FrozenModels frozen)
    : stage_(stage), speed_(plan.speed),
      texts_(speed_.shared_preference_frames ? feed::Texts::share_frames : feed::Texts::apart),
      image_size_(plan.model.image_size), policy_(policy), ops_(operations), max_capacity_(max_capacity),
      frozen_(std::move(frozen)), uses_graphs_(plan.speed.graphs && device::runtime()) {
  const auto sums = at::TensorOptions(ops_.options().device).dtype(at::kDouble);
  if (device::Runtime* gpu = device::runtime())
    input_staging_ = std::make_unique<InputStaging>(
        *gpu, ops_.options().device, std::vector<int64_t>{max_capacity_.frames, 3, image_size_, image_size_},
        plan.speed.overlap_copies);
  sums_ = at::zeros({static_cast<int64_t>(stage_.objective.size()), sums_per_term}, sums);
  entropy_ = at::zeros({}, sums);
  begin_step();
}

Learner::~Learner() = default;

void Learner::begin_step() {
  policy_.parameters().forget_gradients();
  sums_.zero_();
  loss_terms_ = 0;
  used_rows_ = all_rows_ = 0;
  measured_attention_ = false;
}

// Which tokens the output head predicts: those that any term of the objective learns from, or all.
std::vector<bool> Learner::predicted(const SampleText& text) const {
  return speed_.loss_tokens_only ? labels(text, stage_) : labels(text, plan::LossOn::all);
}

// Selects the term's labels among the pack's, which are the union over all terms, text by text.
at::Tensor Learner::mask_of(size_t term, const HostPack& host, int64_t size) const {
  std::vector<float> mask;
  for (const PackedSample& packed : host.samples)
    for (const SampleText& text : packed.sample->texts) {
      const auto all = predicted(text), own = labels(text, stage_.objective[term]);
      for (size_t i = 1; i < all.size(); ++i)
        if (all[i]) mask.push_back(own[i] ? 1 : 0);
    }
  mask.resize(static_cast<size_t>(size), 0);
  return at::tensor(mask, at::kFloat);
}

model::Capacity Learner::rounded_capacity(const model::Capacity& used) const {
  const int64_t classes = classes_of(ops_.options().device.is_cuda());
  model::Capacity capacity = max_capacity_;
  const int64_t min_frames = speed_.text_without_tower ? 0 : std::min<int64_t>(1, max_capacity_.frames);
  capacity.frames = model::size_class(std::max(used.frames, min_frames), max_capacity_.frames, classes);
  capacity.rows = model::size_class(used.rows, max_capacity_.rows, classes);
  capacity.sequences = model::size_class(used.sequences, max_capacity_.sequences, classes);
  capacity.labels = model::size_class(used.labels, max_capacity_.labels, std::max<int64_t>(classes, 16));
  return capacity;
}

void Learner::add_sums(size_t term, std::initializer_list<at::Tensor> sums) {
  int64_t place = 0;
  for (const at::Tensor& sum : sums) sums_[static_cast<int64_t>(term)][place++].add_(sum);
}

// Builds the pack in host memory, without frames.
model::Pack Learner::make_pack(const HostPack& host) {
  const auto samples = feed::model_samples(
      host, image_size_, [this](const SampleText& text) { return predicted(text); }, texts_);
  const auto used = model::Capacity::of(samples), capacity = rounded_capacity(used);
  used_rows_ += used.rows;
  all_rows_ += capacity.rows;
  const int64_t patches = policy_.tower().tokens_per_frame(image_size_, image_size_);
  return model::make_pack(samples, capacity, patches, ops_.tensor_options().device(at::kCPU), model::Frames::apart);
}

// In host memory: what any model, trained or frozen, reads of the pack.
Learner::Inputs Learner::model_inputs_of(const HostPack& host) {
  Inputs in;
  in.pack = make_pack(host);
  in.pairs = stage_.prefers() ? std::ssize(host.samples) : 0;
  for (size_t term = 0; term < stage_.objective.size(); ++term)
    in.masks.push_back(mask_of(term, host, in.pack.labels.targets.size(0)));
  if (in.pack.query_source.defined()) {
    in.frames = feed::frames_of(host, image_size_, texts_);
    in.shares = at::zeros(in.pack.query_source.sizes(), at::kDouble);
    in.shares.narrow(0, 0, in.pack.frames_used).fill_(1 / static_cast<double>(in.pack.frames_used));
  }
  return in;
}

// Adds the weights of the terms in this step, and cached log-probabilities of the reference.
Learner::Inputs Learner::step_inputs_of(const HostPack& host, const StepCounts& counts, double scale) {
  Inputs in = model_inputs_of(host);
  std::vector<double> weights;
  for (size_t term = 0; term < stage_.objective.size(); ++term) {
    const bool of_pairs = std::holds_alternative<plan::Dpo>(stage_.objective[term]);
    loss_terms_ += of_pairs ? static_cast<double>(in.pairs) : in.masks[term].sum().item<double>();
    const double of_term = std::visit([](const auto& any) { return any.weight; }, stage_.objective[term]);
    weights.push_back(counts.of_term[term] > 0 ? scale * of_term / counts.of_term[term] : 0);
  }
  in.weights = at::tensor(weights, at::kDouble);
  if (frozen_.remembered) in.reference_logprobs = cached_logprobs(host);
  return in;
}

std::shared_ptr<Learner::StagedPack> Learner::bring(const HostPack& host, const StepCounts& counts, double scale,
                                                    bool measures_attention) {
  Inputs inputs = step_inputs_of(host, counts, scale);
  measures_attention = measures_attention && inputs.pack.frames_used > 0;
  measured_attention_ = measured_attention_ || measures_attention;
  if (!input_staging_)
    return std::make_shared<StagedPack>(
        StagedPack{std::move(inputs).on(ops_.options().device), measures_attention, {}});
  auto key = inputs.key();
  key.push_back(measures_attention);
  auto& staged = staged_packs_[key];
  if (!staged) staged = std::make_shared<StagedPack>(StagedPack{{}, measures_attention, {}});
  copy_to_device(std::move(inputs), host, staged->inputs);
  return staged;
}

// `destination` holds device buffers of the same shapes from an earlier pack, or is empty.
void Learner::copy_to_device(Inputs inputs, const HostPack& host, Inputs& destination) {
  const at::Device device = ops_.options().device;
  const at::Tensor frames = std::exchange(inputs.frames, {}), storage = inputs.flatten(device.is_cuda());
  if (!destination.storage.defined()) {
    if (frames.defined()) inputs.pack.frames = input_staging_->slots(inputs.shares.size(0));
    inputs.view_into(at::empty(storage.sizes(), at::TensorOptions(device).dtype(at::kByte)));
    destination = std::move(inputs);
  }
  destination.storage.copy_(storage, true);
  if (frames.defined()) input_staging_->stage(frames, host.buffer, destination.pack.frames);
}

void Learner::take(StagedPack& staged, PartTimes& times) {
  model::Parameters& parameters = policy_.parameters();
  const auto before = parameters.gradient_flags();
  auto& [graph, after] =
      staged.passes.try_emplace(before, StagedPack::CapturedPass{{"the model", uses_graphs_}, {}}).first->second;
  const bool ran = graph.run([this, &staged, &times, before] {
    policy_.parameters().set_gradient_flags(before);
    run_pass(staged, times);
  });
  if (ran)
    after = parameters.gradient_flags();
  else
    parameters.set_gradient_flags(after);
  kernels_ = graph.kernels();
  if (!ran) times.spent_on("graph");
}

void Learner::take(const HostPack& host, const StepCounts& counts, double scale, PartTimes& times,
                   bool measures_attention) {
  if (host.samples.empty()) return;
  const auto staged = bring(host, counts, scale, measures_attention);
  times.spent_on("data");
  take(*staged, times);
}

void Learner::run_pass(const StagedPack& staged, PartTimes& times) {
  const Inputs& in = staged.inputs;
  StepContext context{in, times, {}, Tape()};
  context.begin_phase("vision");
  const auto done = [&](std::string_view part) {
    times.spent_on(std::string(part));
    if (part != "fine") context.begin_phase(part == "vision" ? "coarse" : "fine");
  };
  context.visual = policy_.see(
      context.tape, ops_, in.pack, stage_.mode,
      staged.measures_attention ? model::Vlm::Outputs::tokens_and_attention : model::Vlm::Outputs::tokens, done);
  if (context.visual.attention.defined()) {
    const at::Tensor of_frames = evaluation::entropies(context.visual.attention) * in.shares;
    entropy_.copy_(at::where(in.shares > 0, of_frames, 0.0).sum());
    context.visual.attention.reset();
    times.spent_on("metrics");
  }
  const auto& terms = stage_.objective;
  if (!std::all_of(terms.begin(), terms.end(), is_coarse)) fine_losses(context);
  if (std::any_of(terms.begin(), terms.end(), is_coarse)) coarse_losses(context);
  context.tape.backward();
  times.spent_on("backward");
}

void Learner::fine_losses(StepContext& context) {
  context.begin_phase("decoder");
  const Value hidden = policy_.read(context.tape, ops_, context.visual.tokens, context.in.pack, context.visual.next);
  context.times.spent_on("decoder");
  context.begin_phase("head");
  at::Tensor weights = at::zeros_like(context.in.pack.labels.weights);
  bool gradients_known = true; // before the losses are computed, which lets the loss plugin fuse both
  for (size_t term = 0; term < stage_.objective.size(); ++term) {
    if (const auto* next = std::get_if<plan::NextToken>(&stage_.objective[term]); next && !is_coarse(*next))
      weights.add_(context.weights(term));
    gradients_known = gradients_known && !std::holds_alternative<plan::Dpo>(stage_.objective[term]);
  }
  Value losses;
  if (gradients_known) {
    losses = Value(model::next_token(context.tape, ops_, policy_, hidden, context.in.pack, weights));
  } else {
    losses = model::label_losses(context.tape, ops_, policy_, hidden, context.in.pack);
    if (losses.wants_gradient()) losses.gradient->add(weights);
  }
  context.times.spent_on("head");
  for (size_t term = 0; term < stage_.objective.size(); ++term) {
    const at::Tensor& mask = context.in.masks[term];
    if (std::holds_alternative<plan::Dpo>(stage_.objective[term]))
      dpo_loss(context, term, losses);
    else if (std::holds_alternative<plan::Kl>(stage_.objective[term]))
      kl_loss(context, term, hidden);
    else if (!is_coarse(stage_.objective[term]))
      add_sums(term, {losses.data.mul(mask).sum(), mask.sum()});
  }
  const auto needs_frozen_model = [](const plan::Term& term) { return !std::holds_alternative<plan::NextToken>(term); };
  if (std::any_of(stage_.objective.begin(), stage_.objective.end(), needs_frozen_model))
    context.times.spent_on("reference");
}

// The recipe's lambda_coarse: the loss of the same text with the visual tokens of the coarse pass.
void Learner::coarse_losses(StepContext& context) {
  context.begin_phase("decoder");
  const Value hidden = policy_.read(context.tape, ops_, context.visual.coarse, context.in.pack);
  context.times.spent_on("decoder");
  context.begin_phase("head");
  at::Tensor weights = at::zeros_like(context.in.pack.labels.weights);
  for (size_t term = 0; term < stage_.objective.size(); ++term)
    if (is_coarse(stage_.objective[term])) weights.add_(context.weights(term));
  const at::Tensor losses = model::next_token(context.tape, ops_, policy_, hidden, context.in.pack, weights);
  for (size_t term = 0; term < stage_.objective.size(); ++term) {
    const at::Tensor& mask = context.in.masks[term];
    if (is_coarse(stage_.objective[term])) add_sums(term, {losses.mul(mask).sum(), mask.sum()});
  }
  context.times.spent_on("head");
}

// The last hidden states of a frozen model.
Value Learner::frozen_hidden(const model::Vlm& frozen, const model::Pack& pack) {
  Tape none(Tape::Mode::forward_only);
  const auto seen = frozen.see(none, ops_, pack, stage_.mode);
  return frozen.read(none, ops_, seen.tokens, pack);
}

// The reference model's log-probability of each text of the pairs: float64 [2 pairs].
at::Tensor Learner::reference_logprobs(const model::Vlm& reference, const model::Pack& pack, const at::Tensor& mask,
                                       int64_t pairs) {
  Tape none(Tape::Mode::forward_only);
  return model::log_probabilities(none, ops_, reference, frozen_hidden(reference, pack), pack, mask)
      .sum.narrow(0, 0, 2 * pairs);
}

void Learner::remember(const HostPack& host, const model::Vlm& reference) {
  if (host.samples.empty()) return;
  const auto dpo = std::find_if(stage_.objective.begin(), stage_.objective.end(),
                                [](const plan::Term& term) { return std::holds_alternative<plan::Dpo>(term); });
  const auto term = static_cast<size_t>(dpo - stage_.objective.begin());
  Inputs inputs = model_inputs_of(host);
  auto& staged = reference_inputs_[inputs.key()];
  const at::Device device = ops_.options().device;
  if (!staged) {
    const auto logprobs = at::zeros({2 * inputs.pairs}, at::TensorOptions(device).dtype(at::kDouble));
    staged = std::make_shared<ReferenceInputs>(ReferenceInputs{{}, logprobs, {"the reference", uses_graphs_}});
  }
  if (input_staging_)
    copy_to_device(std::move(inputs), host, staged->inputs);
  else
    staged->inputs = std::move(inputs).on(device);
  staged->graph.run([this, &reference, &staged = *staged, term] {
    const Inputs& in = staged.inputs;
    staged.logprobs.copy_(reference_logprobs(reference, in.pack, in.masks[term], in.pairs));
  });
  auto pending = std::make_unique<PendingLogProbs>(PendingLogProbs{host.samples, Late({staged->logprobs})});
  collect_pending_logprobs(); // of the previous pack, while the device computes this one
  pending_logprobs_ = std::move(pending);
  if (!input_staging_ || !input_staging_->overlaps()) collect_pending_logprobs();
  if (!input_staging_) reference_inputs_.clear();
}

void Learner::collect_pending_logprobs() {
  if (!pending_logprobs_) return;
  const auto pending = std::move(pending_logprobs_);
  const double* sum = pending->sums.read().front().const_data_ptr<double>();
  for (const PackedSample& pair : pending->pairs) {
    frozen_.remembered->remember(pair, {sum[0], sum[1]});
    sum += 2;
  }
}

void Learner::end_remembering() {
  collect_pending_logprobs();
  reference_inputs_.clear();
}

at::Tensor Learner::cached_logprobs(const HostPack& host) const {
  std::vector<double> sums;
  for (const PackedSample& packed : host.samples) {
    const auto& pair = frozen_.remembered->at(packed);
    sums.insert(sums.end(), {pair.chosen, pair.rejected});
  }
  return at::tensor(sums, at::kDouble);
}

void Learner::dpo_loss(StepContext& context, size_t term, const Value& losses) {
  const Inputs& in = context.in;
  const at::Tensor& mask = in.masks[term];
  const auto policy = model::log_probabilities(losses, in.pack, mask);
  const at::Tensor target = in.reference_logprobs.defined()
                                ? in.reference_logprobs
                                : reference_logprobs(*frozen_.reference, in.pack, mask, in.pairs);
  const double beta = std::get<plan::Dpo>(stage_.objective[term]).beta;
  const auto result = model::dpo_loss(policy, target, in.pack, beta, in.weights[static_cast<int64_t>(term)]);
  add_sums(term, {result.losses.sum(), at::full({}, in.pairs, result.losses.options()), result.margins.gt(0).sum(),
                  result.chosen_rewards.sum(), result.rejected_rewards.sum()});
}

void Learner::kl_loss(StepContext& context, size_t term, const Value& hidden) {
  const model::Pack& pack = context.in.pack;
  const double temperature = std::get<plan::Kl>(stage_.objective[term]).temperature;
  const model::Vlm& teacher = *frozen_.teachers.at(term);
  const at::Tensor& mask = context.in.masks[term];
  const at::Tensor target =
      model::log_softmax_at_temperature(ops_, teacher, frozen_hidden(teacher, pack), pack, temperature);
  const at::Tensor divergences =
      model::kl_divergence(context.tape, ops_, policy_, hidden, pack, target, temperature, context.weights(term));
  add_sums(term, {divergences.mul(mask).sum(), mask.sum()});
}

std::vector<Learner::Tally> Learner::tallies(const at::Tensor& sums) {
  const at::Tensor on_host = sums.cpu();
  std::vector<Tally> tallies(static_cast<size_t>(sums.size(0)));
  static_assert(sizeof(Tally) == sums_per_term * sizeof(double));
  std::memcpy(tallies.data(), on_host.const_data_ptr(), on_host.nbytes());
  return tallies;
}

} // namespace fvlm::train
