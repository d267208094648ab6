#include "budget/stage_budget.h"

#include "base/error.h"
#include "budget/parameter_groups.h"
#include "budget/shadow/step.h"
#include "model/size_class.h"
#include "model/weights/resolve_model.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <numeric>

namespace fvlm::budget {
namespace {

constexpr int64_t float32 = 4;

bool prefers_reference(const plan::Plan& plan, std::string_view kind) {
  const auto& preferences = plan.kernels[kind];
  return !preferences.empty() && preferences.front() == "reference";
}

// The moments of the algorithm, in bytes for each element of the arena.
int64_t moment_bytes(const plan::Stage& stage, const Machine& machine) {
  const bool narrow = plan::common(stage.optimizer).moments == plan::Moments::bf16 && !machine.plain_optimizer;
  const int64_t first = narrow ? 2 : float32, adamw = first + float32; // AdamW's second is float32 in any case
  return std::holds_alternative<plan::Muon>(stage.optimizer) ? first + adamw : adamw;
}

// The workspace that the loss keeps: logits of some rows, and their hidden states with the sums of their gradients.
int64_t loss_workspace(const DecoderConfig& decoder, const Machine& machine, int64_t labels) {
  if (machine.plain_loss) return 0;
  constexpr int64_t kept_logits = 96 << 20, most_parts = 8;
  const int64_t block = decoder.hidden_size <= 1024 ? 128 : 64, blocks = (decoder.vocab_size + block - 1) / block;
  const int64_t rows = std::min(labels, std::clamp<int64_t>(kept_logits / (blocks * block * float32), 48, 1024));
  const int64_t of_logits = blocks * block * rows + 2 * blocks * rows;
  return float32 * (of_logits + rows * decoder.hidden_size * (2 + std::min(blocks, most_parts)));
}

int64_t quantized_elements(const Setting& setting) {
  int64_t sum = 0;
  for (const ParameterBlock& block : blocks_of(setting.model.vision, setting.model.connector, setting.model.decoder))
    for (const ParameterSpec& spec : block)
      if (is_quantized(*setting.plan.quantization, directory_name(spec.name), std::ssize(spec.shape)))
        sum += spec.elements();
  return sum;
}

// The workspace that Muon keeps.
int64_t muon_workspace(const Setting& setting) {
  if (setting.machine.plain_optimizer || !std::holds_alternative<plan::Muon>(setting.stage.optimizer)) return 0;
  std::map<std::pair<int64_t, int64_t>, int64_t> matrices; // of each shape
  for (const ParameterBlock& block : blocks_of(setting.model.vision, setting.model.connector, setting.model.decoder))
    for (const ParameterSpec& spec : block)
      if (spec.shape.size() == 2 && spec.name.find(".layer") != std::string::npos)
        ++matrices[{spec.shape[0], spec.shape[1]}];
  // optimizer-muon takes one after the other; optimizer-cuda those of one shape together.
  constexpr int64_t most_matrices = 64, most_bytes = 128 << 20, of_products = 4 << 20;
  const bool together = setting.machine.matrices_together;
  int64_t most = 0;
  for (const auto& [shape, count] : matrices) {
    const int64_t small = std::min(shape.first, shape.second), large = std::max(shape.first, shape.second);
    const int64_t one = 2 * (together ? setting.machine.element : float32) * small * (large + small);
    const int64_t batch = std::min({count, most_matrices, std::max<int64_t>(1, most_bytes / one)});
    most = std::max(most, together ? batch * one + of_products : one);
  }
  return most;
}

} // namespace

Machine machine_of(const plan::Plan& plan, Device device) {
  Machine machine;
  const bool narrow = plan.precision == plan::Precision::bf16 || plan.precision == plan::Precision::fp16;
  machine.element = narrow ? 2 : float32;
  machine.widened_products = narrow && device == Device::cpu;
  machine.packs_of_frames = device == Device::cuda && plan.speed.overlap_copies ? 2 : 1;
  machine.plain_attention = prefers_reference(plan, "attention");
  machine.takes_guests = machine.plain_attention || (device == Device::cuda && narrow);
  machine.keeps_rests = !machine.plain_attention && device == Device::cuda && plan.precision == plan::Precision::bf16;
  machine.plain_loss = prefers_reference(plan, "loss");
  machine.plain_kernels = prefers_reference(plan, "rmsnorm");
  machine.plain_optimizer = prefers_reference(plan, "optimizer");
  machine.matrices_together = device == Device::cuda;
  if (device == Device::cuda) machine.row_unit = 16;
  return machine;
}

ModelShape shape_of(const ModelDescription& description, const plan::Plan& plan) {
  plan::Speed speed = plan.speed;
  if (plan.precision == plan::Precision::fp16) speed.fold_layer_scale = false; // as the tower has it
  const auto* foveated = description.connector().as<connector::Foveated>();
  if (!foveated)
    throw Error(ErrorKind::data, fmt::format("the memory of a model with the connector fvlm.{} cannot be estimated yet",
                                             description.connector()->name()))
        .advise("measure it: train a few steps with --max-steps and read device_memory_bytes in metrics.jsonl");
  return {description.encoder(), *foveated, description.decoder(), plan.model.image_size, speed};
}

PackShape full_pack(const plan::Stage& stage, int64_t frames, int64_t rows, int64_t most_samples) {
  const auto largest = stage.largest_sample();
  PackShape pack;
  pack.frames = frames;
  pack.rows = rows;
  pack.visual_rows = std::min(rows, stage.texts_per_sample() * frames);
  pack.sequences = stage.texts_per_sample() * (most_samples > 0 ? most_samples : rows / 16 + 1);
  pack.labels = rows - pack.visual_rows;
  pack.longest_sequence = largest.tokens / stage.texts_per_sample();
  pack.longest_video = largest.frames;
  pack.mode = stage.mode;
  return pack;
}

PackCapacity capacity_of(const plan::Stage& stage, std::vector<std::string>& assumptions) {
  const auto largest = stage.largest_sample();
  PackCapacity capacity{0, stage.packing.tokens.value_or(std::max(largest.tokens, usual_rows))};
  if (largest.frames == 0) return capacity;
  capacity.frames = stage.packing.frames.value_or(capacity.rows / largest.tokens * largest.frames);
  if (!stage.packing.frames)
    assumptions.push_back(fmt::format("packing.frames is open: training takes it from the data; here {}, for samples "
                                      "of {} frames and {} tokens",
                                      capacity.frames, largest.frames,
                                      largest.tokens / stage.texts_per_sample() - largest.frames));
  return capacity;
}

PackShape largest_pack(const plan::Stage& stage, std::vector<std::string>& assumptions) {
  const auto largest = stage.largest_sample();
  const PackCapacity most = capacity_of(stage, assumptions);
  // A pack is no more than its step.
  int64_t frames = most.frames, rows = most.rows;
  if (stage.batch.tokens && *stage.batch.tokens < rows) {
    rows = *stage.batch.tokens;
    if (!stage.packing.frames) frames = rows / largest.tokens * largest.frames;
  }
  if (stage.batch.frames) frames = std::min(frames, *stage.batch.frames);
  if (stage.batch.samples) {
    frames = std::min(frames, *stage.batch.samples * largest.frames);
    rows = std::min(rows, *stage.batch.samples * largest.tokens);
  }
  frames = model::size_class(frames, most.frames);
  rows = model::size_class(rows, most.rows);
  PackShape pack = full_pack(stage, frames, rows, stage.packing.segments.value_or(0));
  pack.labels = model::size_class(pack.labels, most.rows);
  return pack;
}

Setting setting_of(const plan::Plan& plan, const plan::Stage& stage, const ModelDescription& description,
                   Device device) {
  Setting setting{plan, stage, machine_of(plan, device), shape_of(description, plan), {}};
  for (size_t term = 0; term < stage.objective.size(); ++term)
    if (const std::string* teacher = stage.objective[term]->teacher())
      setting.teachers[term] = shape_of(ModelDirectory::open(resolve_model(*teacher)).description(), plan);
  return setting;
}

Need step_need(const Setting& setting, const PackShape& samples, const plan::ActivationCheckpointing& recompute) {
  PackShape pack = samples;
  if (!setting.model.speed.shared_preference_frames) pack.frames = pack.visual_rows;
  Ledger ledger;
  const Machine& machine = setting.machine;
  shadow::Operations ops(ledger, machine);
  const auto trained = [&](const std::string& name) {
    return trains(setting.stage, group_of(setting.plan.model, name));
  };
  const auto none = [](const std::string&) { return false; };
  const shadow::Model policy(ops, setting.model, trained, recompute);

  std::vector<Ledger::Block> held;
  const auto hold = [&](Item item, int64_t bytes) {
    const Ledger::For it(ledger, item);
    held.push_back(ledger.hold(bytes));
  };
  hold(Item::weights, machine.element * (policy.trained() + policy.fixed()));
  const bool narrow_gradients = setting.plan.gradients == plan::Gradients::bf16;
  hold(Item::gradients, (narrow_gradients ? machine.element : float32) * policy.trained());
  if (machine.element != float32) hold(Item::masters, float32 * policy.trained());
  hold(Item::moments, moment_bytes(setting.stage, machine) * policy.trained());
  if (setting.stage.quantization_aware && setting.plan.quantization)
    hold(Item::real_weights, machine.element * quantized_elements(setting));
  hold(Item::workspace, loss_workspace(setting.model.decoder, machine, pack.labels) + muon_workspace(setting));

  shadow::Models models{policy, nullptr, {}};
  std::vector<std::unique_ptr<shadow::Model>> frozen;
  const auto freeze = [&](const ModelShape& shape) {
    frozen.push_back(std::make_unique<shadow::Model>(ops, shape, none, plan::ActivationCheckpointing{}));
    hold(Item::frozen, machine.element * frozen.back()->fixed());
    return frozen.back().get();
  };
  if (setting.stage.uses(plan::ObjectiveTerm::Reference::live)) models.reference = freeze(setting.model);
  for (const auto& [term, teacher] : setting.teachers) models.teachers[term] = freeze(teacher);

  const int64_t size = setting.model.image_size;
  Need need;
  need.amounts = shadow::learn(ops, models, setting.stage, pack, 3 * size * size);
  if (machine.plain_optimizer) ledger.touch(3 * float32 * policy.trained());
  need.peak = ledger.peak();
  need.amounts[static_cast<size_t>(Item::passing)] +=
      need.peak - std::accumulate(need.amounts.begin(), need.amounts.end(), int64_t{0});
  return need;
}

int64_t packs_in_flight(const plan::Plan& plan, int64_t frames) {
  constexpr int64_t most_packs = 32; // that the loader has under way
  const int64_t size = plan.model.image_size, bytes = frames * 3 * size * size * float32;
  return bytes > 0 ? bytes * std::min((plan.loader.memory_mib << 20) / bytes, most_packs) : 0;
}

int64_t checkpoint_copy(const Need& need) {
  int64_t copy = 0;
  for (const Item item : {Item::weights, Item::masters, Item::moments}) copy += need.amounts[static_cast<size_t>(item)];
  return copy;
}

StageBudget stage_budget(const plan::Plan& plan, const plan::Stage& stage, const ModelDescription& description,
                         Device device) {
  const Setting setting = setting_of(plan, stage, description, device);
  StageBudget budget;
  budget.stage = stage.name;
  budget.pack = largest_pack(stage, budget.assumptions);
  budget.step = step_need(setting, budget.pack);
  budget.without_recompute = step_need(setting, budget.pack, {}).peak;
  plan::Recompute all;
  all.every = 1;
  budget.with_all = step_need(setting, budget.pack, {all, all}).peak;

  budget.packs_in_flight = packs_in_flight(plan, budget.pack.frames);
  budget.checkpoint = checkpoint_copy(budget.step);
  return budget;
}

} // namespace fvlm::budget
