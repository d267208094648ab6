#include "train/optimization.h"

#include "base/error.h"
#include "base/text.h"
#include "train/stage_model.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/isfinite.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <limits>
#include <optional>

namespace fvlm::train {
namespace {

bool is_of_others(const plan::Optimizer& optimizer, const Group& group, const ops::Parameter& parameter) {
  return budget::is_of_others(optimizer, group.name, directory_name(parameter.name), parameter.value.sizes());
}

std::vector<const Group*> trained_of(const std::vector<Group>& groups) {
  std::vector<const Group*> trained;
  for (const Group& group : groups)
    if (group.trained && !group.parameters.empty()) trained.push_back(&group);
  return trained;
}

// What the stage's algorithm updates, or else what is left to `others`.
std::vector<fvlm_optimizer_segment> segments_of(const std::vector<Group>& groups, const plan::Optimizer& optimizer,
                                                bool others) {
  std::vector<fvlm_optimizer_segment> segments;
  const auto all = trained_of(groups);
  for (size_t group = 0; group < all.size(); ++group)
    for (const ops::Parameter* parameter : all[group]->parameters) {
      if (is_of_others(optimizer, *all[group], *parameter) != others) continue;
      const int64_t rows = parameter->value.dim() >= 2 ? parameter->value.size(0) : 1;
      segments.push_back(
          {parameter->value.storage_offset(), rows, parameter->value.numel() / rows, static_cast<int64_t>(group)});
    }
  std::ranges::sort(segments, [](const auto& a, const auto& b) { return a.offset < b.offset; });
  return segments;
}

std::string algorithm_of(const plan::Optimizer& optimizer, bool others) {
  if (others) return "adamw";
  if (std::holds_alternative<plan::AdamW>(optimizer)) return "adamw";
  if (std::holds_alternative<plan::Muon>(optimizer)) return "muon";
  return std::get<plan::PluginOptimizer>(optimizer).algorithm;
}

fvlm_optimizer_query query_of(const plan::Stage& stage, at::Device device, at::ScalarType parameters,
                              at::ScalarType gradients, const std::vector<fvlm_optimizer_segment>& segments) {
  fvlm_optimizer_query query{};
  query.struct_size = sizeof query;
  query.device = ops::abi_device(device);
  query.gradient_dtype = ops::abi_dtype(gradients);
  query.parameter_dtype = ops::abi_dtype(parameters);
  query.state_dtype =
      ops::abi_dtype(plan::common(stage.optimizer).moments == plan::Moments::bf16 ? at::kBFloat16 : at::kFloat);
  query.segment_count = static_cast<int64_t>(segments.size());
  query.segments = segments.data();
  return query;
}

Choice<fvlm_optimizer_v1> chosen(const plan::Plan& plan, const plan::Stage& stage, Registry& registry,
                                 const fvlm_optimizer_query& query, bool others) {
  return select<fvlm_optimizer_v1>(registry, BackendPreference::of(plan.kernels["optimizer"]), query,
                                   algorithm_of(stage.optimizer, others));
}

// What the recipe says besides the rate and the decay, by the algorithm's own names.
std::map<std::string, double> hyperparameters_of(const plan::Optimizer& optimizer, bool others,
                                                 const std::string& group) {
  const auto of_adam = [&](const plan::AdamByGroup& settings) -> std::map<std::string, double> {
    const plan::Adam adam = settings.of(group);
    return {{"beta1", adam.betas[0]}, {"beta2", adam.betas[1]}, {"eps", adam.eps}};
  };
  if (const auto* adamw = std::get_if<plan::AdamW>(&optimizer)) return of_adam(*adamw);
  if (const auto* muon = std::get_if<plan::Muon>(&optimizer)) {
    if (others) return of_adam(muon->others);
    return {{"momentum", muon->momentum_at(0)}, {"nesterov", muon->nesterov ? 1 : 0}, {"eps", muon->eps}};
  }
  return std::get<plan::PluginOptimizer>(optimizer).options;
}

// Without a wait, and whatever becomes of the host's numbers then.
void send(const at::Tensor& numbers, const at::Tensor& there) {
  if (there.is_cuda())
    there.copy_(at::empty(numbers.sizes(), numbers.options().pinned_memory(true)).copy_(numbers), true);
  else
    there.copy_(numbers);
}

} // namespace

Optimization::Optimization(const plan::Plan& plan, const plan::Stage& stage, Registry& registry,
                           model::Parameters& parameters, std::vector<Group> groups, const Sharing& sharing)
    : parameters_(parameters), groups_(std::move(groups)), arenas_(sharing, parameters.trained(), whole_parts(stage)),
      uses_graphs_(plan.speed.graphs && device::runtime() && arenas_.is_capturable()) {
  if (parameters.trained().numel() == 0)
    throw Error(ErrorKind::recipe, "every group is frozen: nothing is trained").at("stages.{}", stage.name);

  share_gradients(sharing);
  const bool own_master = parameters.trained().scalar_type() != at::kFloat;
  const at::Tensor own = arenas_.own(parameters.trained());
  master_ = own_master ? own.to(at::kFloat) : own;

  const auto on = [&](at::ScalarType type) { return parameters.trained().options().dtype(type); };
  norm_ = at::zeros({}, on(at::kDouble));
  limits_ = at::zeros({2}, on(at::kDouble));
  step_ = at::ones({1}, on(at::kLong));
  scale_ = at::zeros({1}, on(at::kFloat));
  skip_ = at::zeros({1}, on(at::kInt));

  for (const Group* group : trained()) {
    Rates& rates = base_rates_.emplace_back();
    bool all_others = true;
    for (const ops::Parameter* parameter : group->parameters) {
      const bool others = is_of_others(stage.optimizer, *group, *parameter);
      (others ? rates.others : rates.lr) = budget::base_rate(stage.optimizer, group->name, others);
      all_others = all_others && others;
    }
    all_others_.push_back(all_others);
  }
  if (const auto* muon = std::get_if<plan::Muon>(&stage.optimizer)) muon_ = *muon;
  for (const bool others : {false, true}) add_part(plan, stage, registry, others);
}

void Optimization::share_gradients(const Sharing& sharing) {
  const at::Tensor& arena = parameters_.gradients();
  arenas_.share_gradients(arena);
  if (sharing.shards_gradients()) own_gradients_ = at::zeros({arenas_.own().length}, arena.options());
  for (const Group& group : groups_)
    for (const ops::Parameter* parameter : group.parameters) {
      if (group.trained || !parameter->gradient.defined()) continue;
      const dist::Slice place{parameter->value.storage_offset(), parameter->value.numel()};
      const dist::Slice own = dist::inside(std::array{place}, arenas_.own()).front();
      untrained_.push_back(own_gradients_.defined() ? own_gradients_.narrow(0, own.begin, own.length)
                                                    : parameter->gradient);
    }
  if (!sharing.reduces_in_backward || !arenas_.is_shared() ||
      !(arena.is_cpu() || arena.is_meta() || arenas_.is_capturable()))
    return;
  GradientReduction::Calls calls;
  calls.reduce = [this](const model::GradientBucket& bucket) {
    const dist::Slice part{bucket.begin, bucket.length};
    return arenas_.reduce(
        bucket.buffer ? bucket.buffer->values() : parameters_.gradients().narrow(0, part.begin, part.length), part);
  };
  calls.on_replay = [this](int64_t operations) { arenas_.count_replayed(operations); };
  if (own_gradients_.defined()) {
    calls.on_step = [this] { own_gradients_.zero_(); };
    calls.on_reduced = [this](const model::GradientBucket& bucket) {
      const dist::Slice& own = arenas_.own();
      const dist::Slice part = dist::inside(std::array{own}, {bucket.begin, bucket.length}).front();
      if (part.length > 0)
        own_gradients_.narrow(0, bucket.begin + part.begin - own.begin, part.length)
            .add_(bucket.buffer->values().narrow(0, part.begin, part.length));
    };
  }
  reduction_ = std::make_unique<GradientReduction>(parameters_, std::move(calls));
}

void require_optimizer(const plan::Plan& plan, const plan::Stage& stage, Registry& registry,
                       const model::Parameters& parameters, const std::vector<Group>& groups, at::Device device) {
  const at::ScalarType type = type_of(plan.precision);
  for (const bool others : {false, true}) {
    const auto segments = segments_of(groups, stage.optimizer, others);
    if (segments.empty()) continue;
    auto query = query_of(stage, device, type, plan.gradients == plan::Gradients::bf16 ? type : at::kFloat, segments);
    query.elements = parameters.trained().numel();
    query.group_count = static_cast<int64_t>(trained_of(groups).size());
    chosen(plan, stage, registry, query, others);
  }
}

std::vector<const Group*> Optimization::trained() const {
  return trained_of(groups_);
}

// Parts that one rank has to update as a whole: matrices, but for AdamW, which updates each element by itself.
std::vector<dist::Slice> Optimization::whole_parts(const plan::Stage& stage) const {
  if (std::holds_alternative<plan::AdamW>(stage.optimizer)) return {};
  std::vector<dist::Slice> whole;
  for (const auto& segment : segments_of(groups_, stage.optimizer, false))
    whole.push_back({segment.offset, segment.rows * segment.cols});
  return whole;
}

// Those inside the rank's slice, counted from its beginning. One that the slice cuts becomes a vector; where none is
// left, an empty one stands for them, so that all ranks have the same states.
std::vector<fvlm_optimizer_segment> Optimization::own_segments(const std::vector<fvlm_optimizer_segment>& all) const {
  if (!arenas_.is_sharded() || all.empty()) return all;
  const dist::Slice& own = arenas_.own();
  std::vector<fvlm_optimizer_segment> inside;
  for (fvlm_optimizer_segment segment : all) {
    const int64_t end = segment.offset + segment.rows * segment.cols;
    const int64_t first = std::max(segment.offset, own.begin), last = std::min(end, own.end());
    if (first >= last) continue;
    if (first > segment.offset || last < end) segment = {first, 1, last - first, segment.group};
    segment.offset -= own.begin;
    inside.push_back(segment);
  }
  if (inside.empty()) inside.push_back({0, all.front().rows, 0, all.front().group});
  return inside;
}

void Optimization::add_part(const plan::Plan& plan, const plan::Stage& stage, Registry& registry, bool others) {
  const auto segments = own_segments(segments_of(groups_, stage.optimizer, others));
  if (segments.empty()) return;
  const auto& common = plan::common(stage.optimizer);
  const at::Device device = parameters_.trained().device();
  auto query =
      query_of(stage, device, parameters_.trained().scalar_type(), parameters_.gradients().scalar_type(), segments);
  query.elements = arenas_.own().length;
  query.group_count = static_cast<int64_t>(trained().size());
  const auto choice = chosen(plan, stage, registry, query, others);
  choices_.push_back(choice.report);

  Part& part = parts_.emplace_back();
  part.algorithm = algorithm_of(stage.optimizer, others);
  part.place = fmt::format("stages.{}.optimizer{}", stage.name, others ? ".others" : "");
  part.others = others;
  part.optimizer = std::make_shared<ops::Optimizer>(ops::Backend<fvlm_optimizer_v1>(choice, device), query, segments);
  if (parts_.size() > 1) // Muon and AdamW update segments apart from each other, and touch nothing else
    part.states = part.optimizer->make_states(parts_.front().states);
  else
    part.states = part.optimizer->make_states();
  part.hyperparameters = part.optimizer->default_hyperparameters();
  const auto all = trained();
  for (size_t group = 0; group < all.size(); ++group) {
    for (const auto& [name, value] : hyperparameters_of(stage.optimizer, others, all[group]->name))
      set(part, name, group, value);
    if (const auto decay = budget::number_of(common.weight_decay, all[group]->name))
      set(part, "weight_decay", group, *decay);
    set(part, "lr", group, others ? base_rates_[group].others : base_rates_[group].lr);
  }
  part.of_device = part.hyperparameters.to(device, part.hyperparameters.scalar_type(), false, true);
}

void Optimization::set(Part& part, const std::string& name, size_t group, double value) {
  const auto known = part.optimizer->hyperparameters();
  std::vector<std::string> names;
  for (size_t column = 0; column < known.size(); ++column) {
    names.emplace_back(known[column].name);
    if (name != known[column].name) continue;
    if (value < known[column].least || value > known[column].most)
      throw Error(ErrorKind::recipe, "{} = {:g} is out of range: {} accepts {:g} to {:g}", name, value, part.algorithm,
                  known[column].least, known[column].most)
          .at(part.place);
    part.hyperparameters[static_cast<int64_t>(group)][static_cast<int64_t>(column)].fill_(value);
    return;
  }
  throw Error(ErrorKind::recipe, "the optimizer {} has no hyperparameter '{}'", part.algorithm, name)
      .at(part.place)
      .advise("it has " + join_or(names));
}

void Optimization::set_momentum(int64_t step) {
  if (!muon_ || !muon_->momentum_warmup) return;
  for (Part& part : parts_)
    if (!part.others)
      for (size_t group = 0; group < base_rates_.size(); ++group)
        set(part, "momentum", group, muon_->momentum_at(step));
}

void Optimization::step(const std::vector<Rates>& rates, double scale, double clip, const at::Tensor& sums,
                        bool recorded) {
  for (Part& part : parts_) {
    for (size_t group = 0; group < rates.size(); ++group)
      set(part, "lr", group, part.others ? rates[group].others : rates[group].lr);
    send(part.hyperparameters, part.of_device);
  }
  send(at::tensor({scale, clip > 0 ? clip : std::numeric_limits<double>::infinity()}, at::kDouble), limits_);
  if (!sums_.defined()) sums_ = at::empty_like(sums);
  sums_.copy_(sums);
  if (!recorded) return apply();
  const auto gradients = parameters_.gradient_flags();
  ops::GraphCache& graph = graphs_.try_emplace(gradients, "the optimizer", uses_graphs_).first->second;
  graph.run([this] { apply(); });
  kernels_ = graph.kernels();
}

void Optimization::apply() {
  const bool has_all = !own_gradients_.defined();
  const at::Tensor &gradients = has_all ? parameters_.gradients() : own_gradients_, &values = parameters_.trained();
  if (has_all) parameters_.zero_missing_gradients();
  for (at::Tensor& gradient : untrained_) gradient.zero_();
  arenas_.sum(sums_);
  if (arenas_.is_shared() && !reduction_) arenas_.reduce(gradients, {0, gradients.numel()})->wait();
  norm_.copy_(arenas_.norm(gradients)).mul_(limits_[0]);
  scale_.copy_((limits_[1] / (norm_ + 1e-6)).clamp_max(1.0) * limits_[0]);
  const at::Tensor applies = norm_.isfinite() & sums_.isfinite().all();
  skip_.copy_(applies.logical_not());
  for (const Part& part : parts_) {
    std::vector<at::Tensor> states;
    for (const auto& state : part.states) states.push_back(state.values);
    const bool rounded = values.scalar_type() != at::kFloat;
    part.optimizer->step(
        {master_, has_all ? arenas_.own(gradients) : gradients, rounded ? arenas_.own(values) : at::Tensor(), states},
        {part.of_device, step_, scale_, skip_});
  }
  arenas_.gather(values);
  step_.add_(applies);
}

std::map<std::string, at::Tensor> Optimization::state() const {
  std::map<std::string, at::Tensor> state;
  if (parameters_.trained().scalar_type() != at::kFloat) state[master_weights] = master_;
  for (const Part& part : parts_)
    for (const auto& own : part.states)
      if (std::ranges::none_of(state, [&](const auto& other) { return other.second.is_same(own.values); }))
        state[part.algorithm + "." + own.name] = own.values;
  return state;
}

std::map<std::string, at::Tensor> Optimization::shared_state() const {
  std::map<std::string, at::Tensor> shared;
  const auto kept = state();
  for (const Part& part : parts_)
    for (const auto& own : part.states)
      if (const std::string name = part.algorithm + "." + own.name; !kept.contains(name)) shared[name] = own.values;
  return shared;
}

std::map<std::string, at::Tensor> Optimization::share_of_state() const {
  auto share = state();
  for (auto& [name, values] : share) values = arenas_.share(values);
  return share;
}

void Optimization::adopt_values() {
  if (parameters_.trained().scalar_type() != at::kFloat) master_.copy_(arenas_.own(parameters_.trained()));
}

} // namespace fvlm::train
