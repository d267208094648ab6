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

constexpr int64_t sums_of_a_term = 5; // the members of Tally

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

// All that the passes read of a pack, and nothing besides: what is recorded of one does for each that looks like it.
struct Learner::Inputs {
  model::Pack pack;
  std::vector<at::Tensor> masks; // of a term: float32 [labels], 1 where it learns
  at::Tensor weights;            // float64 [terms]: of a label, or of a pair
  at::Tensor shares;             // float64 [frame slots]: of each frame in the mean over those that are used
  at::Tensor remembered;         // float64 [2 pairs]: what is remembered of the reference
  at::Tensor frames;             // those of the pack, where the loader laid them
  at::Tensor joined;             // what the others lie in, where they stay
  int64_t pairs = 0;

  std::vector<at::Tensor*> tensors() { // all but frames
    auto all = pack.tensors();
    std::erase(all, &pack.frames);
    const auto others = beside_the_pack();
    all.insert(all.end(), others.begin(), others.end());
    return all;
  }
  // With frames in memory of their own.
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
  // Side by side in one piece of the host's memory, which goes to a device in one copy.
  at::Tensor side_by_side(bool pinned) {
    const auto all = tensors();
    const auto begins = offsets(all);
    at::Tensor bytes = at::empty({begins.back()}, at::TensorOptions().dtype(at::kByte).pinned_memory(pinned));
    for (size_t i = 0; i < all.size(); ++i)
      if (all[i]->defined())
        std::memcpy(bytes.mutable_data_ptr<uint8_t>() + begins[i], all[i]->const_data_ptr(), all[i]->nbytes());
    return bytes;
  }
  void lie_in(const at::Tensor& bytes) {
    joined = bytes;
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
    for (const at::Tensor* tensor : beside_the_pack()) model::append_shape(key, *tensor);
    return key;
  }

 private:
  std::vector<at::Tensor*> beside_the_pack() {
    std::vector<at::Tensor*> all{&weights, &shares, &remembered};
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

struct Learner::Brought {
  Inputs inputs; // stay where they are
  bool watches;
  struct Recorded {
    Recorder recorder;
    std::vector<bool> after; // the parameters that have a gradient when it is done
  };
  std::map<std::vector<bool>, Recorded> passes; // by those that have one before
};

struct Learner::Asked {
  Inputs inputs;      // stay where they are
  at::Tensor answers; // float64 [2 pairs]
  Recorder recorder;
};

struct Learner::Answer {
  std::vector<PackedSample> pairs;
  Late sums; // float64 [2 pairs]
};

struct Learner::Work {
  const Inputs& in;
  PartTimes& times;
  model::Vlm::Seen seen;
  Tape tape;

  // A part of the forward pass begins, which ends the backward pass of what follows.
  void begin(const char* part) {
    if (times.tells()) tape.push([&times = times, name = std::string(part) + " backward"] { times.tell_of(name); });
  }

  at::Tensor weights(size_t term) const { return in.masks[term] * in.weights[static_cast<int64_t>(term)]; }
};

Learner::Learner(const plan::Plan& plan, const plan::Stage& stage, model::Vlm& policy, ops::Operations& operations,
                 const model::Capacity& most, FrozenModels frozen)
    : stage_(stage), speed_(plan.speed),
      texts_(speed_.shared_preference_frames ? feed::Texts::share_frames : feed::Texts::apart),
      image_size_(plan.model.image_size), policy_(policy), ops_(operations), most_(most), frozen_(std::move(frozen)),
      records_(plan.speed.graphs && device::runtime()) {
  const auto sums = at::TensorOptions(ops_.options().device).dtype(at::kDouble);
  if (device::Runtime* gpu = device::runtime())
    arrivals_ = std::make_unique<Arrivals>(*gpu, ops_.options().device,
                                           std::vector<int64_t>{most_.frames, 3, image_size_, image_size_},
                                           plan.speed.overlap_copies);
  tally_ = at::zeros({static_cast<int64_t>(stage_.objective.size()), sums_of_a_term}, sums);
  entropy_ = at::zeros({}, sums);
  begin_step();
}

Learner::~Learner() = default;

void Learner::begin_step() {
  policy_.parameters().forget_gradients();
  tally_.zero_();
  held_ = 0;
  used_rows_ = all_rows_ = 0;
  watched_ = false;
}

// The tokens that the output head predicts: those that any term learns from, or all.
std::vector<bool> Learner::predicted(const SampleText& text) const {
  return speed_.loss_tokens_only ? labels(text, stage_) : labels(text, plan::LossOn::all);
}

// Which of the pack's labels the term learns from: the pack has those of all terms, text by text.
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

model::Capacity Learner::rounded(const model::Capacity& used) const {
  const int64_t classes = classes_of(ops_.options().device.is_cuda());
  model::Capacity capacity = most_;
  const int64_t least = speed_.text_without_tower ? 0 : std::min<int64_t>(1, most_.frames);
  capacity.frames = model::size_class(std::max(used.frames, least), most_.frames, classes);
  capacity.rows = model::size_class(used.rows, most_.rows, classes);
  capacity.sequences = model::size_class(used.sequences, most_.sequences, classes);
  capacity.labels = model::size_class(used.labels, most_.labels, std::max<int64_t>(classes, 16));
  return capacity;
}

void Learner::add(size_t term, std::initializer_list<at::Tensor> sums) {
  int64_t place = 0;
  for (const at::Tensor& sum : sums) tally_[static_cast<int64_t>(term)][place++].add_(sum);
}

// In host memory, without frames.
model::Pack Learner::packed(const HostPack& host) {
  const auto samples = feed::model_samples(
      host, image_size_, [this](const SampleText& text) { return predicted(text); }, texts_);
  const auto used = model::Capacity::of(samples), capacity = rounded(used);
  used_rows_ += used.rows;
  all_rows_ += capacity.rows;
  const int64_t patches = policy_.tower().tokens_per_frame(image_size_, image_size_);
  return model::make_pack(samples, capacity, patches, ops_.tensor_options().device(at::kCPU), model::Frames::apart);
}

// In host memory: what any model reads of the pack.
Learner::Inputs Learner::bare_inputs_of(const HostPack& host) {
  Inputs in;
  in.pack = packed(host);
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

// The same with what the step makes of it.
Learner::Inputs Learner::inputs_of(const HostPack& host, const StepCounts& counts, double scale) {
  Inputs in = bare_inputs_of(host);
  std::vector<double> weights;
  for (size_t term = 0; term < stage_.objective.size(); ++term) {
    const bool of_pairs = std::holds_alternative<plan::Dpo>(stage_.objective[term]);
    held_ += of_pairs ? static_cast<double>(in.pairs) : in.masks[term].sum().item<double>();
    const double of_term = std::visit([](const auto& any) { return any.weight; }, stage_.objective[term]);
    weights.push_back(counts.of_term[term] > 0 ? scale * of_term / counts.of_term[term] : 0);
  }
  in.weights = at::tensor(weights, at::kDouble);
  if (frozen_.remembered) in.remembered = remembered(host);
  return in;
}

std::shared_ptr<Learner::Brought> Learner::bring(const HostPack& host, const StepCounts& counts, double scale,
                                                 bool watches) {
  Inputs inputs = inputs_of(host, counts, scale);
  watches = watches && inputs.pack.frames_used > 0;
  watched_ = watched_ || watches;
  if (!arrivals_) return std::make_shared<Brought>(Brought{std::move(inputs).on(ops_.options().device), watches, {}});
  auto key = inputs.key();
  key.push_back(watches);
  auto& brought = brought_[key];
  if (!brought) brought = std::make_shared<Brought>(Brought{{}, watches, {}});
  lay(std::move(inputs), host, brought->inputs);
  return brought;
}

// `there`: has been laid for inputs of these shapes, or is empty.
void Learner::lay(Inputs inputs, const HostPack& host, Inputs& there) {
  const at::Device device = ops_.options().device;
  const at::Tensor frames = std::exchange(inputs.frames, {}), joined = inputs.side_by_side(device.is_cuda());
  if (!there.joined.defined()) {
    if (frames.defined()) inputs.pack.frames = arrivals_->slots(inputs.shares.size(0));
    inputs.lie_in(at::empty(joined.sizes(), at::TensorOptions(device).dtype(at::kByte)));
    there = std::move(inputs);
  }
  there.joined.copy_(joined, true);
  if (frames.defined()) arrivals_->bring(frames, host.buffer, there.pack.frames);
}

void Learner::take(Brought& brought, PartTimes& times) {
  model::Parameters& parameters = policy_.parameters();
  const auto before = parameters.with_gradient();
  auto& [recorder, after] =
      brought.passes.try_emplace(before, Brought::Recorded{{"the model", records_}, {}}).first->second;
  const bool ran = recorder.run([this, &brought, &times, before] {
    policy_.parameters().set_with_gradient(before);
    pass(brought, times);
  });
  if (ran)
    after = parameters.with_gradient();
  else
    parameters.set_with_gradient(after);
  kernels_ = recorder.kernels();
  if (!ran) times.spent_on("graph");
}

void Learner::take(const HostPack& host, const StepCounts& counts, double scale, PartTimes& times, bool watches) {
  if (host.samples.empty()) return;
  const auto brought = bring(host, counts, scale, watches);
  times.spent_on("data");
  take(*brought, times);
}

void Learner::pass(const Brought& brought, PartTimes& times) {
  const Inputs& in = brought.inputs;
  Work work{in, times, {}, Tape()};
  work.begin("vision");
  const auto done = [&](std::string_view part) {
    times.spent_on(std::string(part));
    if (part != "fine") work.begin(part == "vision" ? "coarse" : "fine");
  };
  work.seen = policy_.see(work.tape, ops_, in.pack, stage_.mode,
                          brought.watches ? model::Vlm::Show::attention_too : model::Vlm::Show::tokens, done);
  if (work.seen.attention.defined()) {
    const at::Tensor of_frames = evaluation::entropies(work.seen.attention) * in.shares;
    entropy_.copy_(at::where(in.shares > 0, of_frames, 0.0).sum());
    work.seen.attention.reset();
    times.spent_on("metrics");
  }
  const auto& terms = stage_.objective;
  if (!std::all_of(terms.begin(), terms.end(), is_coarse)) learn_fine(work);
  if (std::any_of(terms.begin(), terms.end(), is_coarse)) learn_coarse(work);
  work.tape.backward();
  times.spent_on("backward");
}

void Learner::learn_fine(Work& work) {
  work.begin("decoder");
  const Value hidden = policy_.read(work.tape, ops_, work.seen.tokens, work.in.pack, work.seen.next);
  work.times.spent_on("decoder");
  work.begin("head");
  at::Tensor weights = at::zeros_like(work.in.pack.labels.weights);
  bool known = true; // the gradient of each loss, before the losses are
  for (size_t term = 0; term < stage_.objective.size(); ++term) {
    if (const auto* next = std::get_if<plan::NextToken>(&stage_.objective[term]); next && !is_coarse(*next))
      weights.add_(work.weights(term));
    known = known && !std::holds_alternative<plan::Dpo>(stage_.objective[term]);
  }
  Value losses;
  if (known) {
    losses = Value(model::next_token(work.tape, ops_, policy_, hidden, work.in.pack, weights));
  } else {
    losses = model::label_losses(work.tape, ops_, policy_, hidden, work.in.pack);
    if (losses.wants_gradient()) losses.gradient->add(weights);
  }
  work.times.spent_on("head");
  for (size_t term = 0; term < stage_.objective.size(); ++term) {
    const at::Tensor& mask = work.in.masks[term];
    if (std::holds_alternative<plan::Dpo>(stage_.objective[term]))
      prefer(work, term, losses);
    else if (std::holds_alternative<plan::Kl>(stage_.objective[term]))
      follow(work, term, hidden);
    else if (!is_coarse(stage_.objective[term]))
      add(term, {losses.data.mul(mask).sum(), mask.sum()});
  }
  const auto asks = [](const plan::Term& term) { return !std::holds_alternative<plan::NextToken>(term); };
  if (std::any_of(stage_.objective.begin(), stage_.objective.end(), asks)) work.times.spent_on("reference");
}

// The public lambda_coarse: the same text behind the tokens of the coarse pass.
void Learner::learn_coarse(Work& work) {
  work.begin("decoder");
  const Value hidden = policy_.read(work.tape, ops_, work.seen.coarse, work.in.pack);
  work.times.spent_on("decoder");
  work.begin("head");
  at::Tensor weights = at::zeros_like(work.in.pack.labels.weights);
  for (size_t term = 0; term < stage_.objective.size(); ++term)
    if (is_coarse(stage_.objective[term])) weights.add_(work.weights(term));
  const at::Tensor losses = model::next_token(work.tape, ops_, policy_, hidden, work.in.pack, weights);
  for (size_t term = 0; term < stage_.objective.size(); ++term) {
    const at::Tensor& mask = work.in.masks[term];
    if (is_coarse(stage_.objective[term])) add(term, {losses.mul(mask).sum(), mask.sum()});
  }
  work.times.spent_on("head");
}

// What a model that does not learn makes of the pack.
Value Learner::hidden_of(const model::Vlm& frozen, const model::Pack& pack) {
  Tape none(Tape::Mode::forward_only);
  const auto seen = frozen.see(none, ops_, pack, stage_.mode);
  return frozen.read(none, ops_, seen.tokens, pack);
}

// The log-probabilities of the pairs' texts.
at::Tensor Learner::judged(const model::Vlm& reference, const model::Pack& pack, const at::Tensor& mask,
                           int64_t pairs) {
  Tape none(Tape::Mode::forward_only);
  return model::log_probabilities(none, ops_, reference, hidden_of(reference, pack), pack, mask)
      .sum.narrow(0, 0, 2 * pairs);
}

void Learner::remember(const HostPack& host, const model::Vlm& reference) {
  if (host.samples.empty()) return;
  const auto dpo = std::find_if(stage_.objective.begin(), stage_.objective.end(),
                                [](const plan::Term& term) { return std::holds_alternative<plan::Dpo>(term); });
  const auto term = static_cast<size_t>(dpo - stage_.objective.begin());
  Inputs inputs = bare_inputs_of(host);
  auto& asked = asked_[inputs.key()];
  const at::Device device = ops_.options().device;
  if (!asked) {
    const auto answers = at::zeros({2 * inputs.pairs}, at::TensorOptions(device).dtype(at::kDouble));
    asked = std::make_shared<Asked>(Asked{{}, answers, {"the reference", records_}});
  }
  if (arrivals_)
    lay(std::move(inputs), host, asked->inputs);
  else
    asked->inputs = std::move(inputs).on(device);
  asked->recorder.run([this, &reference, &asked = *asked, term] {
    const Inputs& in = asked.inputs;
    asked.answers.copy_(judged(reference, in.pack, in.masks[term], in.pairs));
  });
  auto answer = std::make_unique<Answer>(Answer{host.samples, Late({asked->answers})});
  take_answer(); // to the pack before, while the device is at this one
  answer_ = std::move(answer);
  if (!arrivals_ || !arrivals_->overlap()) take_answer();
  if (!arrivals_) asked_.clear();
}

void Learner::take_answer() {
  if (!answer_) return;
  const auto answer = std::move(answer_);
  const double* sum = answer->sums.read().front().const_data_ptr<double>();
  for (const PackedSample& pair : answer->pairs) {
    frozen_.remembered->remember(pair, {sum[0], sum[1]});
    sum += 2;
  }
}

void Learner::end_remembering() {
  take_answer();
  asked_.clear();
}

at::Tensor Learner::remembered(const HostPack& host) const {
  std::vector<double> sums;
  for (const PackedSample& packed : host.samples) {
    const auto& pair = frozen_.remembered->at(packed);
    sums.insert(sums.end(), {pair.chosen, pair.rejected});
  }
  return at::tensor(sums, at::kDouble);
}

void Learner::prefer(Work& work, size_t term, const Value& losses) {
  const Inputs& in = work.in;
  const at::Tensor& mask = in.masks[term];
  const auto ours = model::log_probabilities(losses, in.pack, mask);
  const at::Tensor theirs =
      in.remembered.defined() ? in.remembered : judged(*frozen_.reference, in.pack, mask, in.pairs);
  const double beta = std::get<plan::Dpo>(stage_.objective[term]).beta;
  const auto result = model::preference(ours, theirs, in.pack, beta, in.weights[static_cast<int64_t>(term)]);
  add(term, {result.losses.sum(), at::full({}, in.pairs, result.losses.options()), result.margins.gt(0).sum(),
             result.chosen_rewards.sum(), result.rejected_rewards.sum()});
}

void Learner::follow(Work& work, size_t term, const Value& hidden) {
  const model::Pack& pack = work.in.pack;
  const double temperature = std::get<plan::Kl>(stage_.objective[term]).temperature;
  const model::Vlm& teacher = *frozen_.teachers.at(term);
  const at::Tensor& mask = work.in.masks[term];
  const at::Tensor theirs = model::softened(ops_, teacher, hidden_of(teacher, pack), pack, temperature);
  const at::Tensor divergences =
      model::divergence(work.tape, ops_, policy_, hidden, pack, theirs, temperature, work.weights(term));
  add(term, {divergences.mul(mask).sum(), mask.sum()});
}

std::vector<Learner::Tally> Learner::tallies(const at::Tensor& sums) {
  const at::Tensor on_host = sums.cpu();
  std::vector<Tally> tallies(static_cast<size_t>(sums.size(0)));
  static_assert(sizeof(Tally) == sums_of_a_term * sizeof(double));
  std::memcpy(tallies.data(), on_host.const_data_ptr(), on_host.nbytes());
  return tallies;
}

} // namespace fvlm::train
