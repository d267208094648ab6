// The schema of fvlm.recipe { }: the whole run, and what all its stages share.
#include "recipe/schema/containers.h"
#include "recipe/schema/schema.h"

#include <algorithm>
#include <set>

namespace fvlm::recipe {
namespace {

using namespace plan;

void check_preferences(Reader& reader, const Kernels& kernels) {
  for (const auto& [kind, preferences] : kernels.preferences)
    for (size_t i = 0; i + 1 < preferences.size(); ++i)
      if (preferences[i] == "auto" || preferences[i] == "measure")
        reader.report_at(key_part(kind) + index_part(i + 1), fmt::format("\"{}\" must be last", preferences[i]),
                         "it considers every backend, so later entries have no effect");
}

constexpr const char* rate_advice =
    "each stage's optimizer has its own: fvlm.adamw { lr = ... }, and on the command line --set "
    "stages.*.optimizer.lr=...";
constexpr const char* attention_advice =
    "the fastest plugin that fits is chosen, and train says which; kernels = { attention = \"...\" } prefers one";
constexpr const char* ranks_advice =
    "torchrun or srun start a process for each GPU; train --zero divides the optimizer's state among them";
constexpr const char* quantized_base_advice =
    "write the model by export --quantize int4, and train fvlm.lora adapters on it (docs/adapters.md)";

BackendPreferences& preferences_for(Kernels& kernels, const std::string& kind) {
  return kernels.preferences.find(kind)->second;
}

Ref<Kernels> kernels() {
  auto type = record<Kernels>(
      "Kernels", "",
      "Preferred backends by kind of kernel: a name, a list of names with the best first, \"auto\" (best score) or "
      "\"measure\" (timed on this plan's shapes; times are kept in the cache folder; not for optimizer, packer, "
      "quantizer and video, which are not timed). A single preference applies to every kind, \"measure\" then to "
      "those that are timed. `reference` is the engine's own plain implementation.");
  auto preference = list(text(), {.min = 1, .allow_single = true});
  for (const auto& kind : kernel_kinds()) {
    type.field_with<preferences_for>(kind.name, preference, kind.doc);
    if (kind.added_later) type.added_later();
  }
  return type.broadcast()
      .usage("{ attention = { \"cudnn\", \"reference\" }, loss = \"measure\" }")
      .check(check_preferences)
      .done();
}

Ref<Speed> speed() {
  return record<Speed>("Speed", "",
                       "Optimizations that do not change results. Turning one off takes the plain path to the same "
                       "result; `speed = false` turns all off.")
      .usage("{ graphs = false }")
      .field("graphs", &Speed::graphs, boolean(), "Capture a whole step as a CUDA graph and replay it (on a GPU).")
      .field("overlap_copies", &Speed::overlap_copies, boolean(),
             "Prepare the next pack and copy it to the device while this one computes; read the loss of a step back "
             "after the next one is launched.")
      .field("coarse_in_tower", &Speed::coarse_in_tower, boolean(),
             "Append the static query to the tower's rows while keys and values are computed.")
      .field("skip_last_patches", &Speed::skip_last_patches, boolean(),
             "Skip the patch outputs of the tower's last layer, which are unused.")
      .field(
          "fold_layer_scale", &Speed::fold_layer_scale, boolean(),
          "Fold the tower's LayerScale into the preceding weights; their matrix products then add the residual, too.")
      .field("loss_tokens_only", &Speed::loss_tokens_only, boolean(),
             "Run the output head only on positions that have a label.")
      .field(
          "joint_weight_gradients", &Speed::joint_weight_gradients, boolean(),
          "Compute the decoder's weight gradients of both passes in one matrix product, if that keeps at most 1 GiB.")
      .field("shared_preference_frames", &Speed::shared_preference_frames, boolean(),
             "Encode the frames of a pair once for both answers.")
      .field(
          "shared_repeated_frames", &Speed::shared_repeated_frames, boolean(),
          "Encode a still image that is repeated to several frames once, in packs where that saves at least a quarter "
          "of the frames.")
      .added_later()
      .field("text_without_tower", &Speed::text_without_tower, boolean(), "Packs of text alone skip the vision tower.")
      .removed("overlap_vision", "was removed: it was 1 to 3 % slower wherever it was measured")
      .broadcast()
      .done();
}

Ref<Quarantine> quarantine() {
  return record<Quarantine>("Quarantine", "",
                            "How many broken samples are skipped before the run stops: more than `count` and more than "
                            "`share`; or, from 50 samples read, more than a tenth of them (or `share`, if that is "
                            "larger). 10,000 unusable samples in a row also stop it.")
      .field("count", &Quarantine::count, integer(at_least(0)), "Broken samples.")
      .field("share", &Quarantine::share, number(between(0, 1)),
             "Broken samples as a share of those read; 1: any number may be broken.")
      .done();
}

Ref<Loader> loader() {
  return record<Loader>("Loader", "",
                        "How shards are read. Changes speed and memory; the order of samples never depends on it.")
      .field("workers", &Loader::workers, automatic(integer(between(1, 1024))),
             "Threads that read and decode; \"auto\": one per core but one.")
      .aliases({"num_workers"})
      .field("memory_mib", &Loader::memory_mib, integer(at_least(16)), "Memory limit for decoded samples in the queue.")
      .unit("MiB")
      .field("quarantine", &Loader::quarantine, quarantine(), "When broken samples stop the run (exit code 4).")
      .done();
}

Ref<Checkpoint> checkpoint() {
  return record<Checkpoint>("Checkpoint", "",
                            "When checkpoints are written, and which are kept. Every stage ends with a checkpoint.")
      .field("every", &Checkpoint::every, integer(at_least(0)), "Interval; 0: only at the end of a stage.")
      .unit("steps")
      .aliases({"save_steps", "save_every"})
      .field("keep_last", &Checkpoint::keep_last, integer(at_least(1)), "Number of newest checkpoints to keep.")
      .aliases({"save_total_limit"})
      .field("keep_best", &Checkpoint::keep_best, integer(at_least(0)),
             "Number of best checkpoints to keep as well, where a stage has evaluation sets.")
      .field("best_by", &Checkpoint::best_by, optional(identifier(false)),
             "The evaluation set that determines the best. Default: the first of the stage.")
      .done();
}

Ref<Guard> guard() {
  return record<Guard>(
             "Guard", "",
             "What happens when numbers go wrong. A step with a non-finite loss or gradient is never applied.")
      .field("nonfinite_limit", &Guard::nonfinite_limit, integer(at_least(1)),
             "The run stops after this many such steps in a row, and names the last good checkpoint.")
      .unit("steps")
      .field("spike_factor", &Guard::spike_factor, number(at_least(0)),
             "A loss above this multiple of its running mean, or of 0.1 where that is less, is reported as a spike; 0: "
             "never.")
      .field("rollback", &Guard::rollback, boolean(),
             "After a spike or the limit above, go back to the last checkpoint and skip the data in between (once for "
             "each checkpoint). Where that cannot be done, a spike is only reported, and the limit ends the run.")
      .done();
}

Ref<Quantization> quantization() {
  return record<Quantization>(
             "Quantization", "",
             "The quantization that a quantization_aware stage trains for: its passes compute with the linear weights "
             "rounded to this scheme, while checkpoints hold the original ones. `export --quantize` of such a "
             "checkpoint leaves out what `skip` names, too. Embeddings and output heads are never quantized.")
      .usage("{ scheme = \"int8\", skip = { \"decoder.lm_head\", \"vision.*\" } }")
      .field("scheme", &Quantization::scheme, identifier(false),
             "Name of the scheme: int8, int4, or another NAME of a plugin's kind \"fvlm.quantizer/1:NAME\", which "
             "`export` does not know.")
      .field("skip", &Quantization::skip, list(text(), {.allow_single = true}),
             "Modules that are not quantized, by name, with *. Each pattern but that of an output head has to match "
             "one. A number below 0 counts from the last layer: decoder.model.layers.-1.*.")
      .shorthand("scheme")
      .done();
}

struct ActionRecords {
  Ref<StopStage> stop = record<StopStage>("StopStage", "stop_stage", "End the stage here and start the next one.")
                            .call_only()
                            .usage("fvlm.stop_stage()")
                            .done();
  Ref<Save> save = record<Save>("Save", "save", "Write a checkpoint now.").call_only().usage("fvlm.save()").done();
  Ref<ScaleRate> scale =
      record<ScaleRate>("ScaleLr", "scale_lr",
                        "Multiply the learning rate of every group, from here to the end of the stage.")
          .field("factor", &ScaleRate::factor, number(above(0)), "0.5 halves it.")
          .argument()
          .required()
          .call_only()
          .usage("fvlm.scale_lr(0.5)")
          .done();
};

void walk(const Node* node, std::set<const Node*>& seen, std::vector<const RecordInfo*>& found) {
  if (!seen.insert(node).second) return;
  if (node->record() && std::ranges::find(found, node->record()) == found.end()) found.push_back(node->record());
  for (const Node* part : node->parts()) walk(part, seen, found);
}

} // namespace

Ref<std::vector<Action>> action_schema() {
  static const ActionRecords records;
  static const auto type = list(one_of(records.stop, records.save, records.scale), {.allow_single = true});
  return type;
}

Ref<Plan> recipe_schema() {
  static const auto type =
      record<Plan>("Recipe", "recipe",
                   "The whole run: the model, what all stages share, and the stages in the order they run.")
          .field("name", &Plan::name, identifier(true), "Name of the run folder.")
          .required()
          .excluded_from_hash()
          .field("seed", &Plan::seed, integer(at_least(0)),
                 "Seed of data order, packing, initialization, the dropout of adapters and the answers of fvlm.grpo.")
          .field("precision", &Plan::precision,
                 choice<Precision>(
                     {{"bf16", Precision::bf16, "bfloat16, with fp32 master weights"},
                      {"fp8", Precision::fp8,
                       "bf16, but linears of the decoder's inner layers multiply in e4m3 (docs/fp8.md)"},
                      {"fp16", Precision::fp16, "float16, with fp32 master weights and a dynamic loss scale"},
                      {"tf32", Precision::tf32,
                       "float32; matrix products outside of plugins use TF32 where the device has it"},
                      {"fp32", Precision::fp32, "float32"}}),
                 "Precision of the model's computation.")
          .aliases({"dtype", "mixed_precision"})
          .hint("\"fp32\" is float32, \"bf16\" is bfloat16, \"fp16\" is float16")
          .field("gradients", &Plan::gradients,
                 choice<Gradients>({{"fp32", Gradients::fp32, "exact sums over the packs of a step"},
                                    {"bf16", Gradients::bf16, "half the memory, where precision is bf16"}}),
                 "Dtype in which parameter gradients are accumulated.")
          .field("deterministic", &Plan::deterministic, boolean(),
                 "Bitwise reproducible runs on a GPU, at some cost in speed. CPU runs always are.")
          .field("model", &Plan::model, model_schema(), "The model.")
          .required()
          .aliases({"model_name_or_path"})
          .field("kernels", &Plan::kernels, kernels(), "Preferred backends.")
          .field("speed", &Plan::speed, speed(), "Switches of optimizations.")
          .field("loader", &Plan::loader, loader(), "How shards are read.")
          .excluded_from_hash()
          .field("checkpoint", &Plan::checkpoint, checkpoint(), "When checkpoints are written.")
          .excluded_from_hash()
          .aliases({"checkpoints", "save"})
          .field("guard", &Plan::guard, guard(), "What happens when numbers go wrong.")
          .field("quantization", &Plan::quantization, optional(quantization()),
                 "Quantization for stages that are quantization_aware.")
          .example("{ scheme = \"int8\" }")
          .field("log_every", &Plan::log_every, integer(at_least(1)), "How often metrics are written.")
          .unit("steps")
          .excluded_from_hash()
          .aliases({"logging_steps"})
          .field("stages", &Plan::stages, list(stage_schema(), {.min = 1, .max = 1000, .named = true}),
                 "The stages, in the order they run.")
          .items()
          .required()
          .foreign("bf16", "write precision = \"bf16\", or on the command line --set precision=bf16")
          .foreign("fp16", "write precision = \"fp16\", or on the command line --set precision=fp16")
          .foreign("config", "a recipe is named without an option: fvlm-engine train RECIPE")
          .foreign("resume_from_checkpoint", "train resumes the run of its folder; train --resume names a checkpoint")
          .foreign("deepspeed", ranks_advice)
          .foreign("fsdp", ranks_advice)
          .foreign("num_gpus", ranks_advice)
          .foreign("gpus", ranks_advice)
          .foreign("output_dir", "the run's folder is runs/NAME, with the recipe's name, or what train --run-dir says")
          .foreign("lr", rate_advice)
          .foreign("learning_rate", rate_advice)
          .foreign("dataset", "each stage has its own: data = fvlm.mix { \"train.jsonl\" }")
          .foreign("eval_steps", "each stage has its own: evaluation = { every = ..., fvlm.evaluation ... }")
          .foreign("attn_implementation", attention_advice)
          .foreign("flash_attn", attention_advice)
          .foreign("load_in_4bit", quantized_base_advice)
          .foreign("quantization_bit", quantized_base_advice)
          .foreign("report_to",
                   "every run writes metrics.jsonl and TensorBoard's events; tools/track gives them to MLflow "
                   "and Weights & Biases")
          .foreign("cutoff_len", "write max_text_tokens = ... into the fvlm.mix of each stage")
          .foreign("max_steps", "set samples = steps x batch in each stage")
          .foreign("gradient_accumulation_steps", micro_batch_advice)
          .foreign("per_device_train_batch_size", micro_batch_advice)
          .done();
  return type;
}

const std::vector<const RecordInfo*>& all_records() {
  static const auto all = [] {
    std::vector<const RecordInfo*> found;
    std::set<const Node*> seen;
    walk(recipe_schema(), seen, found);
    walk(action_schema(), seen, found);
    return found;
  }();
  return all;
}

std::vector<Constructor> constructors() {
  std::vector<Constructor> all = {{"sum", 0, true}};
  for (const RecordInfo* info : all_records()) {
    if (info->constructor.empty()) continue;
    auto arguments = std::ranges::count_if(info->fields, [](const FieldInfo& f) { return f.place == Place::argument; });
    all.push_back({info->constructor, static_cast<int>(arguments), !info->call_only});
  }
  return all;
}

} // namespace fvlm::recipe
