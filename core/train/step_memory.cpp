#include "train/step_memory.h"

#include "base/error.h"
#include "budget/frame_rows.h"
#include "infer/generation_batch.h"
#include "model/loading.h"
#include "model/weights/visual_rows.h"
#include "ops/cuda_requirements.h"
#include "ops/reference.h"
#include "ops/reference_manifest.h"
#include "recipe/names_stage.h"
#include "train/initial_model.h"
#include "train/synthetic_pack.h"

#include <ATen/ops/empty.h>
#include <c10/core/InferenceMode.h>
#include <c10/util/Exception.h>
#include <fmt/format.h>

#include <numeric>
#include <sys/mman.h>

namespace fvlm::train {
namespace {

using budget::Item;

at::Device device_of(budget::Device device) {
  return device == budget::Device::cpu ? at::Device(at::kCPU) : at::Device(at::kCUDA, 0);
}

// For a GPU that need not be there: a table in place of the plugins.
std::unique_ptr<Registry> registry_without_gpu() {
  auto registry = std::make_unique<Registry>(RegistryOptions{});
  registry->add_static(ops::cuda_requirements_manifest(), [] { return &ops::cuda_requirements_entry; });
  registry->add_static(ops::reference_manifest(), [] { return &ops::reference_entry; });
  return registry;
}

// Where that table stands for every plugin but the reference.
plan::Plan with_table_preferred(plan::Plan plan) {
  for (auto& [kind, preferences] : plan.kernels.preferences)
    if (preferences.empty() || preferences.front() != "reference") preferences = {"auto"};
  return plan;
}

// Algorithms that only a plugin knows are taken to need what AdamW needs.
plan::Stage with_known_optimizer(plan::Stage stage) {
  if (!std::holds_alternative<plan::PluginOptimizer>(stage.optimizer)) return stage;
  plan::AdamW adamw;
  static_cast<plan::OptimizerCommon&>(adamw) = plan::common(stage.optimizer);
  stage.optimizer = adamw;
  return stage;
}

// The address space of a pack's frames, which takes no memory as long as nobody writes there.
std::shared_ptr<std::byte> reserve_frames(size_t bytes) {
  void* memory = mmap(nullptr, bytes, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED)
    throw Error(ErrorKind::device, "no address space for frames of {} bytes", bytes)
        .advise("make packing.frames smaller");
  return {static_cast<std::byte*>(memory), [bytes](std::byte* begin) { munmap(begin, bytes); }};
}

Item item_of(const std::string& part) {
  if (part == "data") return Item::pack;
  if (part == "vision") return Item::vision;
  if (part == "decoder") return Item::decoder;
  if (part == "head" || part == "reference") return Item::loss;
  return Item::connector; // which names its own phases
}

int64_t bytes_of(const ops::Parameter& parameter) {
  if (parameter.packed.empty()) return static_cast<int64_t>(parameter.value.nbytes());
  int64_t bytes = 0;
  for (const at::Tensor& packed : parameter.packed) bytes += static_cast<int64_t>(packed.nbytes());
  return bytes;
}

int64_t bytes_of(const model::Parameters& parameters) {
  int64_t bytes = 0;
  for (const ops::Parameter& parameter : parameters.all()) bytes += bytes_of(parameter);
  return bytes;
}

// Of a reference, or what an earlier stage left: what it shares with the model that trains.
int64_t shared_bytes(const model::Parameters& parameters) {
  int64_t bytes = 0;
  for (const ops::Parameter& parameter : parameters.all()) bytes += parameter.in_base ? bytes_of(parameter) : 0;
  return bytes;
}

// Of ranks that are not there.
class AbsentGroup : public dist::Group {
 public:
  const char* name() const override { return "absent"; }
  bool is_capturable() const override { return true; }
  dist::PendingPointer all_reduce(const at::Tensor&, dist::Reduction) override { return done(); }
  dist::PendingPointer broadcast(const at::Tensor&, int64_t) override { return done(); }
  dist::PendingPointer reduce_scatter(const at::Tensor&, std::span<const dist::Slice>) override { return done(); }
  dist::PendingPointer all_gather(const at::Tensor&, std::span<const dist::Slice>) override { return done(); }
  dist::PendingPointer send_receive(const at::Tensor&, int64_t, const at::Tensor&, int64_t) override { return done(); }

 private:
  struct Done : dist::Pending {
    void wait() override {}
  };
  static dist::PendingPointer done() { return std::make_unique<Done>(); }
};

} // namespace

Sharing first_of(int64_t ranks, int64_t zero) {
  static AbsentGroup group;
  return ranks > 1 ? Sharing{&group, 0, ranks, zero, true} : Sharing();
}

// A step on packs of one size.
class StepMemory::Step {
 public:
  Step(const StepMemory& memory, const PackSize& size, int64_t most_samples)
      : plan_(memory.plan_), stage_(memory.stage_), model_(memory.model_) {
    const plan::VisualRows visual = visual_rows(plan_.model);
    pack_ = make_synthetic_samples(stage_, visual, size, most_samples, memory.description_.vocabulary_sizes(), 0,
                                   budget::most_rows_per_frame(plan_.model));
    const int64_t image = plan_.model.image_size;
    if (const auto pixels = static_cast<size_t>(pack_.host.frame_count * 3 * image * image);
        pixels > 0 && visual.max_bytes == 0) {
      pack_.host.buffer = reserve_frames(pixels);
      pack_.host.pixels = {reinterpret_cast<const uint8_t*>(pack_.host.buffer.get()), pixels};
      pack_.host.normalization = &imagenet_normalization();
    }
    counts_ = counts_of(stage_, pack_.samples);
    order_.emplace(Order::once({counts_.samples}));
    Frozen frozen = with_empty_caches(model_.frozen, stage_, *model_.model, *order_, pack_.host);
    const model::Capacity most = max_capacity_of(plan_, stage_, size, most_samples);
    computer_.emplace(plan_, stage_, *model_.model, *memory.operations_, most, std::move(frozen));
    // On a GPU, the next pack's frames arrive while this one's are read.
    if (memory.device_ == budget::Device::cuda && plan_.speed.overlap_copies && most.frames > 0 && most.bytes == 0)
      incoming_ = at::empty({most.frames, image, image, 3}, at::TensorOptions(at::kMeta).dtype(at::kByte));
    if (const plan::Rollouts* rollouts = stage_.rollouts()) {
      const infer::BatchOptions usual;
      pages_ = model_.model->decoder().make_kv_pages(*memory.operations_, size.rows / usual.page_rows + 1,
                                                     usual.page_rows, usual.max_sequences + 1);
      answers_ = counts_.samples * rollouts->answers;
    }
    if (stage_.quantization_aware)
      quantized_ = std::make_unique<QuantizedWeights>(plan_, memory.registry_, model_.model->parameters(), at::kMeta);
    if (quantized_) quantized_->quantize();
  }

  void run(PartTimes& times) {
    GradientReduction* reduction = model_.optimization->reduction();
    computer_->begin_step();
    draw_answers();
    if (reduction) reduction->begin_step(1);
    computer_->forward_backward(pack_.host, counts_, 1, times, false, reduction);
    if (quantized_) quantized_->pass_gradients();
    if (quantized_) quantized_->restore(QuantizedWeights::Which::trained);
    model_.optimization->step(model_.optimization->base_rates(), 1, plan::common(stage_.optimizer).clip,
                              computer_->sums());
    if (quantized_) quantized_->quantize();
  }

  int64_t incoming_bytes() const { return incoming_.defined() ? static_cast<int64_t>(incoming_.nbytes()) : 0; }
  int64_t answer_bytes() const { return pages_.bytes(); }
  int64_t original_bytes() const { return quantized_ ? quantized_->original_bytes() : 0; }

 private:
  // The next token of all answers at once, which takes logits and what is made of them in double precision.
  void draw_answers() const {
    if (answers_ == 0) return;
    constexpr int64_t copies = 5;
    const at::Tensor drawn = at::empty({copies, answers_, model_.model->config().decoder.vocab_size},
                                       at::TensorOptions(at::kMeta).dtype(at::kDouble));
  }

  const plan::Plan& plan_;
  const plan::Stage& stage_;
  const StageModel& model_;
  model::KvPages pages_;
  int64_t answers_ = 0;
  SyntheticPack pack_;
  StepCounts counts_;
  std::optional<Order> order_;
  std::optional<GradientComputer> computer_;
  at::Tensor incoming_;
  std::unique_ptr<QuantizedWeights> quantized_;
};

StepMemory::StepMemory(const plan::Plan& plan, const plan::Stage& stage, const ModelDescription& description,
                       Registry& registry, budget::Device device, const Sharing& sharing)
    : plan_(device == budget::Device::cuda ? with_table_preferred(plan) : plan),
      stage_(device == budget::Device::cuda ? with_known_optimizer(stage) : stage), description_(description),
      device_(device), dry_run_(device_of(device)),
      without_gpu_(device == budget::Device::cuda ? registry_without_gpu() : nullptr),
      registry_(without_gpu_ ? *without_gpu_ : registry) {
  const c10::InferenceMode without_autograd;
  operations_ = make_operations(plan_, registry_, at::kMeta);
  const MakeModel make = [&, scheme_of = schemes_of(description_)](model::ArenaOptions options) {
    options.scheme_of = scheme_of;
    return std::make_unique<model::Model>(model::config_of(description_), options);
  };
  model_ = make_stage_model(plan_, stage_, registry_, at::kMeta, make, make, sharing);
}

StepMemory::~StepMemory() = default;

int64_t StepMemory::last_bucket() const {
  const model::Parameters& parameters = model_.model->parameters();
  return parameters.gradient_buckets().back().length * static_cast<int64_t>(parameters.gradients().element_size());
}

budget::Need StepMemory::of(const PackSize& size, int64_t most_samples,
                            const plan::ActivationCheckpointing& recompute) {
  const c10::InferenceMode without_autograd;
  model_.model->set_recompute(model::Recompute::from_plan(recompute.vision),
                              model::Recompute::from_plan(recompute.decoder));
  Step step(*this, size, most_samples);
  PartTimes times;
  run(step, times); // afterwards all workspaces have their size

  std::map<std::string, int64_t> kept; // by part, when the forward pass is done
  bool forward = true;
  times.set_callback([&](const std::string& part) {
    forward = forward && !part.ends_with("backward");
    if (!forward) return;
    dry_run_.end_part(part);
    kept = dry_run_.live_parts();
  });
  dry_run_.reset_peak();
  dry_run_.begin_parts();
  run(step, times);
  return need(step, kept);
}

void StepMemory::run(Step& step, PartTimes& times) const {
  try {
    step.run(times);
  } catch (const c10::NotImplementedError& error) {
    const std::string what = error.what_without_backtrace();
    throw Error(ErrorKind::data, "the memory of a step cannot be estimated: " + what.substr(0, what.find('\n')))
        .at("stage " + stage_.name)
        .advise("use other ATen operators in the connector or objective, or add this one to "
                "core/ops/dry_run_operators.cpp");
  }
}

budget::Need StepMemory::need(const Step& step, const std::map<std::string, int64_t>& kept) const {
  budget::Need need;
  const auto amount = [&](Item item) -> int64_t& { return need.amounts[static_cast<size_t>(item)]; };
  amount(Item::weights) = bytes_of(model_.model->parameters());
  need.base = shared_bytes(model_.model->parameters());
  amount(Item::gradients) = static_cast<int64_t>(model_.model->parameters().gradients().nbytes());
  for (const auto& [name, state] : model_.optimization->state())
    amount(name == Optimization::master_weights ? Item::masters : Item::moments) +=
        static_cast<int64_t>(state.nbytes());
  amount(Item::real_weights) = step.original_bytes();
  const auto& [reference, teachers] = model_.frozen.models;
  const auto add_sharing = [&](const model::Parameters& parameters) {
    amount(Item::frozen) += bytes_of(parameters) - shared_bytes(parameters);
  };
  if (reference) add_sharing(reference->parameters());
  for (const auto& [term, teacher] : teachers)
    if (plan::names_stage(plan_, *stage_.objective[term]->teacher()))
      add_sharing(teacher->parameters());
    else
      amount(Item::frozen) += bytes_of(teacher->parameters());
  amount(Item::pack) = step.incoming_bytes();
  amount(Item::answers) = step.answer_bytes();
  // What is left of that which stays from step to step.
  amount(Item::workspace) = dry_run_.live() - std::accumulate(need.amounts.begin(), need.amounts.end(), int64_t{0});
  for (const auto& [part, bytes] : kept) amount(item_of(part)) += bytes;
  need.peak = dry_run_.peak();
  amount(Item::passing) = need.peak - std::accumulate(need.amounts.begin(), need.amounts.end(), int64_t{0});
  return need;
}

budget::StageBudget stage_budget(const plan::Plan& plan, const plan::Stage& stage, const ModelDescription& description,
                                 Registry& registry, budget::Device device, int64_t ranks) {
  budget::StageBudget budget;
  budget.stage = stage.name;
  const int64_t rows_per_frame = budget::most_rows_per_frame(plan.model);
  budget.pack = budget::largest_pack(stage, rows_per_frame, budget.assumptions);
  PackSize size{budget.pack.frames, budget.pack.rows};
  if (device == budget::Device::cuda) {
    std::vector<std::string> known; // assumptions
    const budget::PackCapacity capacity = budget::capacity_of(stage, rows_per_frame, known);
    size = PackClasses::most_on_gpu(size, {capacity.frames, capacity.rows});
  }
  const int64_t most_samples = stage.packing.segments.value_or(0);
  {
    StepMemory memory(plan, stage, description, registry, device);
    plan::Recompute all;
    all.every = 1;
    budget.step = memory.of(size, most_samples, stage.activation_checkpointing);
    budget.without_recompute = memory.of(size, most_samples, {}).peak;
    budget.with_all = memory.of(size, most_samples, {all, all}).peak;
    budget.last_bucket = memory.last_bucket();
  }
  if (ranks > 1) {
    try {
      StepMemory of_first(plan, stage, description, registry, device, first_of(ranks));
      budget.sharded_gradients_peak = of_first.of(size, most_samples, stage.activation_checkpointing).peak;
    } catch (const Error& error) {
      if (error.kind() != ErrorKind::usage) throw;
      budget.assumptions.push_back(error.text());
    }
  }
  if (const auto* own = std::get_if<plan::PluginOptimizer>(&stage.optimizer); own && device == budget::Device::cuda)
    budget.assumptions.push_back(fmt::format("the optimizer {} is taken to need what adamw needs", own->algorithm));
  budget.packs_in_flight = budget::packs_in_flight(plan, budget.pack.frames);
  budget.checkpoint = budget::checkpoint_copy(budget.step);
  return budget;
}

} // namespace fvlm::train
