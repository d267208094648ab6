#include "train/stage_model.h"

#include "base/error.h"
#include "base/log.h"
#include "base/text.h"
#include "budget/model_tokens.h"
#include "device/peak.h"
#include "device/probe.h"
#include "model/loading.h"
#include "model/weights/resolve_model.h"
#include "model/weights/visual_rows.h"
#include "recipe/names_stage.h"

#include <ATen/Context.h>
#include <fmt/format.h>

#include <algorithm>

namespace fvlm::train {

at::ScalarType type_of(plan::Precision precision) {
  if (precision == plan::Precision::bf16 || precision == plan::Precision::fp8) return at::kBFloat16;
  if (precision == plan::Precision::fp16) return at::kHalf;
  return at::kFloat;
}

static at::ScalarType gradient_type(const plan::Plan& plan) {
  return plan.gradients == plan::Gradients::bf16 ? at::kBFloat16 : at::kFloat;
}

std::unique_ptr<ops::Operations> make_operations(const plan::Plan& plan, Registry& registry, at::Device device,
                                                 const ops::ContextGroup& context) {
  if (plan.precision == plan::Precision::tf32) at::globalContext().setAllowTF32CuBLAS(true);
  if (plan.deterministic) { // ATen's own operations, too
    at::globalContext().setDeterministicAlgorithms(true, true);
    at::globalContext().setDeterministicFillUninitializedMemory(false);
  }
  ops::OperationsOptions options;
  options.device = device;
  options.context = context;
  options.dtype = type_of(plan.precision);
  options.gradient_dtype = gradient_type(plan);
  options.deterministic = plan.deterministic;
  options.fp8 = plan.precision == plan::Precision::fp8;
  options.attention = BackendPreference::of(plan.kernels["attention"]);
  options.loss = BackendPreference::of(plan.kernels["loss"]);
  options.quantizer = BackendPreference::of(plan.kernels["quantizer"]);
  for (const plan::KernelKind& kind : plan::kernel_kinds())
    options.operations[std::string(kind.name)] = BackendPreference::of(plan.kernels[kind.name]);
  return std::make_unique<ops::Operations>(registry, std::move(options));
}

std::optional<double> peak_flops(at::Device device, plan::Precision precision) {
  if (!device.is_cuda()) return {};
  const auto devices = device::probe_cuda().devices;
  const auto index = static_cast<size_t>(std::max<int>(0, device.index()));
  if (index >= devices.size()) return {};
  const auto arithmetic = precision == plan::Precision::fp32   ? device::Arithmetic::fp32
                          : precision == plan::Precision::tf32 ? device::Arithmetic::tf32
                                                               : device::Arithmetic::half;
  return device::peak_flops(devices[index].name, arithmetic);
}

std::unique_ptr<model::Model> make_frozen(const plan::Plan& plan, at::Device device, const MakeModel& make,
                                          const model::Parameters* base) {
  auto made = make({.device = device,
                    .dtype = type_of(plan.precision),
                    .gradient_dtype = at::kFloat,
                    .trains = [](const model::ParameterSpec&) { return false; },
                    .shares_base_with = base});
  made->speed = plan.speed;
  return made;
}

void check_teacher(const plan::Plan& plan, const plan::Stage& stage, const plan::ObjectiveTerm& term,
                   const std::filesystem::path& folder, const model::ModelConfig& teacher,
                   const model::ModelConfig& model) {
  budget::require_teacher_tokens(plan.model, folder, teacher.decoder.vocab_size, model.decoder.vocab_size);
  if (term.reads_teacher_prompt() || !stage.data.has_frames()) return;
  const auto rows_of = [&](const model::ModelConfig& config) {
    return visual_rows(*config.connector, config.vision, plan.model.image_size);
  };
  const plan::VisualRows of_teacher = rows_of(teacher), of_model = rows_of(model);
  if (of_teacher.per_frame != of_model.per_frame)
    throw Error(ErrorKind::data, "the teacher makes {} of a frame, and the model {}, and both read the same packs",
                counted(of_teacher.per_frame, "decoder row"), of_model.per_frame)
        .at(*term.teacher())
        .advise("take a teacher whose encoder and connector make as many; or reads = \"teacher_prompt\", with which it "
                "reads no frames");
  if (of_teacher.of_cells != of_model.of_cells || (of_teacher.max_bytes > 0) != (of_model.max_bytes > 0))
    throw Error(ErrorKind::data,
                "the teacher's encoder reads other frames than the model's, and both read the same packs")
        .at(*term.teacher())
        .advise(
            "take a teacher with an encoder of the same kind; or reads = \"teacher_prompt\", with which it reads no "
            "frames");
}

namespace {

// Throws Error(usage) where the stage has to have all gradients at once.
void require_sharded_gradients(const plan::Stage& stage, at::Device device, const Sharing& sharing) {
  const auto refuse = [&](const std::string& why, const std::string& advice) {
    throw Error(ErrorKind::usage, "--zero 2: " + why).at("stages." + stage.name).advise(advice);
  };
  if (stage.quantization_aware)
    refuse("a quantization-aware stage changes the gradients of whole matrices", "train it with --zero 1");
  if (!sharing.reduces_in_backward)
    refuse("a model as small as this is trained by several threads, which have all gradients each",
           "set OMP_NUM_THREADS=1, or train with --zero 1");
  if (!device.is_cpu() && !sharing.group->is_capturable())
    refuse("gradients that go through the host's memory cannot be reduced during a captured backward pass",
           "give each rank a GPU of its own, or train with --zero 1");
}

// Hints, since what is computed is right. Quantized weights are multiplied as they are, and rounding costs what
// products of small matrices gain.
void warn_of_fp8_without_gain(const model::Model& model, Registry& registry) {
  constexpr int64_t enough = 1'000'000'000;
  int64_t count = 0;
  bool quantized = false;
  for (const ops::Parameter& parameter : model.parameters().all()) {
    if (parameter.name.starts_with("decoder.")) count += parameter.value.numel();
    quantized = quantized || (parameter.allows_fp8 && !parameter.packed.empty());
  }
  constexpr const char* of_quantized =
      "precision = \"fp8\" has no effect on quantized weights; \"bf16\" computes the same";
  if (quantized && registry.is_first_occurrence(of_quantized)) log_warning("{}", of_quantized);
  const auto line =
      fmt::format("precision = \"fp8\" is for decoders of a billion parameters and more: with {:.1f} million, "
                  "\"bf16\" is likely as fast, and more accurate",
                  static_cast<double>(count) / 1e6);
  if (count < enough && registry.is_first_occurrence(line)) log_warning("{}", line);
}

} // namespace

StageModel make_stage_model(const plan::Plan& plan, const plan::Stage& stage, Registry& registry, at::Device device,
                            const MakeModel& policy, const MakeModel& begin, const Sharing& sharing,
                            const MakeLeftModel& left_by) {
  if (sharing.shards_gradients()) require_sharded_gradients(stage, device, sharing);
  StageModel made;
  model::ArenaOptions arenas{device, type_of(plan.precision), gradient_type(plan)};
  const bool has_groups = !plan.model.groups.empty();
  const plan::Model model =
      has_groups ? budget::with_indices(plan.model, budget::parameter_names(budget::describe(plan))) : plan.model;
  arenas.trains = [&](const model::ParameterSpec& spec) {
    return trains(stage, group_of(model, directory_name(spec.name)));
  };
  arenas.buffers_gradients = sharing.shards_gradients();
  made.model = policy(arenas);
  made.model->speed = plan.speed;
  made.model->set_recompute(model::Recompute::from_plan(stage.activation_checkpointing.vision),
                            model::Recompute::from_plan(stage.activation_checkpointing.decoder));
  if (plan.precision == plan::Precision::fp8) warn_of_fp8_without_gain(*made.model, registry);
  if (stage.uses(plan::ObjectiveTerm::Reference::live))
    made.frozen.models.reference = make_frozen(plan, device, begin, &made.model->parameters());
  for (size_t term = 0; term < stage.objective.size(); ++term) {
    const std::string* named = stage.objective[term]->teacher();
    if (!named) continue;
    auto& teacher = made.frozen.models.teachers[term];
    if (plan::names_stage(plan, *named)) {
      const MakeModel left = [&](const model::ArenaOptions& arena) { return left_by(*named, arena); };
      teacher = make_frozen(plan, device, left_by ? left : begin, &made.model->parameters());
      continue;
    }
    const std::filesystem::path folder = resolve_model(*named);
    teacher =
        make_frozen(plan, device, [&](const model::ArenaOptions& arena) { return model::load_model(folder, arena); });
    check_teacher(plan, stage, *stage.objective[term], folder, teacher->config(), made.model->config());
  }
  made.optimization = std::make_unique<Optimization>(plan, stage, registry, made.model->parameters(),
                                                     groups_of(plan.model, stage, made.model->parameters()), sharing);
  return made;
}

model::Capacity max_capacity_of(const plan::Plan& plan, const plan::Stage& stage, const PackSize& capacity,
                                int64_t most_samples) {
  const int64_t texts = stage.texts_per_sample();
  const plan::VisualRows visual = visual_rows(plan.model);
  const auto largest = stage.largest_sample(visual.per_frame);
  model::Capacity most;
  most.frames = capacity.frames * (plan.speed.shared_preference_frames ? 1 : stage.texts_per_frame());
  most.bytes = most.frames * visual.max_bytes;
  most.rows = capacity.rows;
  // Each document of a row is a sequence of its own where they are isolated.
  const bool any_number = most_samples == 0 || stage.data.documents == plan::Documents::isolated;
  most.sequences = texts * (any_number ? capacity.rows / 16 + 1 : most_samples);
  most.labels = capacity.rows;
  most.longest_sequence = largest.longest;
  most.longest_video = largest.longest_video;
  return most;
}

} // namespace fvlm::train
