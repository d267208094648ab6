// fvlm.recipe { }: the whole run, and what all its stages share.
#include "base/text.h"
#include "recipe/schema/containers.h"
#include "recipe/schema/schema.h"

#include <algorithm>
#include <set>

namespace fvlm::recipe {
namespace {

using namespace plan;

void check_wishes(Reader& reader, const Kernels& kernels) {
  for (const auto& [kind, wishes] : kernels.wishes)
    for (size_t i = 0; i + 1 < wishes.size(); ++i)
      if (wishes[i] == "auto" || wishes[i] == "measure")
        reader.complain_at(key_part(kind) + index_part(i + 1), fmt::format("nothing can come after \"{}\"", wishes[i]),
                           "it considers every backend: put it last");
}

WishList& wishes_for(Kernels& kernels, const std::string& kind) {
  return kernels.wishes.find(kind)->second;
}

Ref<Kernels> kernels() {
  auto type = record<Kernels>(
      "Kernels", "",
      "Which backends are wanted, by kind of kernel: a name, a list of names with the best "
      "first, \"auto\" (best score) "
      "or \"measure\" (timed on this plan's shapes; the cache folder keeps the times; not for optimizer, packer, "
      "quantizer and video, which are not timed). One wish alone is for every kind, \"measure\" then for those that "
      "are "
      "timed. "
      "`reference` is the engine's own plain one.");
  auto wish = list(text(), {.least = 1, .or_one = true});
  for (const auto& kind : kernel_kinds()) type.field_with<wishes_for>(kind.name, wish, kind.doc);
  return type.each()
      .usage("{ attention = { \"cudnn\", \"reference\" }, loss = \"measure\" }")
      .check(check_wishes)
      .done();
}

Ref<Speed> speed() {
  return record<Speed>("Speed", "",
                       "Work that need not be done, or not one after the other. Each switch that is off takes the "
                       "plain path to the same result. "
                       "`speed = false` turns all off.")
      .usage("{ graphs = false }")
      .field("graphs", &Speed::graphs, flag(), "Record a whole step once and replay it (on a GPU).")
      .field("overlap_copies", &Speed::overlap_copies, flag(),
             "Prepare the next pack and copy it to the device while this one computes; a step's loss is read when the "
             "next "
             "one is on its way.")
      .field("coarse_in_tower", &Speed::coarse_in_tower, flag(),
             "Let the static query ride through the tower as one more row while keys and values are computed.")
      .field("skip_last_patches", &Speed::skip_last_patches, flag(),
             "Compute no patch outputs in the tower's last layer, which nobody reads.")
      .field("fold_layer_scale", &Speed::fold_layer_scale, flag(),
             "Fold the tower's LayerScale into the weights before it; their products add the residual as well.")
      .field("loss_tokens_only", &Speed::loss_tokens_only, flag(),
             "Run the output head where a token with a loss follows, not on all text.")
      .field(
          "joint_weight_gradients", &Speed::joint_weight_gradients, flag(),
          "One product for the decoder's weight gradients of both passes, where no more than 1 GiB has to wait for it.")
      .field("shared_preference_frames", &Speed::shared_preference_frames, flag(),
             "Encode the frames of a pair once for both answers.")
      .field("text_without_tower", &Speed::text_without_tower, flag(), "Packs of text alone skip the vision tower.")
      .removed("overlap_vision", "was removed: where it was measured it was 1 to 3 % slower")
      .each()
      .done();
}

Ref<Quarantine> quarantine() {
  return record<Quarantine>("Quarantine", "",
                            "How many broken samples are skipped before the run stops: more than `count` and more than "
                            "`share`; or, from 50 samples read, more than a tenth of them (or `share`, where that is "
                            "larger). 10,000 in a row of which none can be used end it, too.")
      .field("count", &Quarantine::count, whole(at_least(0)), "Broken samples.")
      .field("share", &Quarantine::share, number(between(0, 1)),
             "Broken samples as a share of those read; 1: any number may be broken.")
      .done();
}

Ref<Loader> loader() {
  return record<Loader>("Loader", "",
                        "How shards are read. Changes speed and memory; the order of samples never depends on it.")
      .field("workers", &Loader::workers, automatic(whole(between(1, 1024))),
             "Threads that read and decode; \"auto\": one for each core but one.")
      .elsewhere({"num_workers"})
      .field("memory_mib", &Loader::memory_mib, whole(at_least(16)), "Most memory for decoded samples that wait.")
      .unit("MiB")
      .field("quarantine", &Loader::quarantine, quarantine(), "When broken samples end the run (exit code 4).")
      .done();
}

Ref<Checkpoint> checkpoint() {
  return record<Checkpoint>("Checkpoint", "",
                            "When the run is saved, and which saves are kept. A stage is always saved at its end.")
      .field("every", &Checkpoint::every, whole(at_least(0)), "How often; 0: only at the end of a stage.")
      .unit("steps")
      .elsewhere({"save_steps", "save_every"})
      .field("keep_last", &Checkpoint::keep_last, whole(at_least(1)), "The newest so many are kept.")
      .elsewhere({"save_total_limit"})
      .field("keep_best", &Checkpoint::keep_best, whole(at_least(0)),
             "The best so many are kept too, where a stage has evaluation sets.")
      .field("best_by", &Checkpoint::best_by, optional(label(false)),
             "The evaluation set that decides. Default: the first of the stage.")
      .done();
}

Ref<Guard> guard() {
  return record<Guard>(
             "Guard", "",
             "What happens when numbers go wrong. A step with a non-finite loss or gradient is never applied.")
      .field("nonfinite_limit", &Guard::nonfinite_limit, whole(at_least(1)),
             "The run stops after so many such steps in a row, and names the last good checkpoint.")
      .unit("steps")
      .field("spike_factor", &Guard::spike_factor, number(at_least(0)),
             "A loss above this many times its running mean is reported as a spike; 0: never.")
      .field("rollback", &Guard::rollback, flag(),
             "After a spike or the limit above, go back to the last checkpoint and skip the data in between (once for "
             "each checkpoint).")
      .done();
}

Ref<Quantization> quantization() {
  return record<Quantization>(
             "Quantization", "",
             "The few bits that weights are rounded to while a stage that is quantization_aware trains. Only there: "
             "`export` does not quantize yet, and a recipe without such a stage is refused.")
      .usage("{ scheme = \"int8\", skip = { \"decoder.lm_head\", \"vision.*\" } }")
      .field("scheme", &Quantization::scheme, label(false), "As a plugin names it: kind \"fvlm.quantizer/1:NAME\".")
      .field("skip", &Quantization::skip, list(text(), {.or_one = true}),
             "Modules that stay as they are, by name, with *.")
      .shorthand("scheme")
      .done();
}

struct ActionRecords {
  Ref<StopStage> stop = record<StopStage>("StopStage", "stop_stage", "Ends the stage here; the next one begins.")
                            .call_only()
                            .usage("fvlm.stop_stage()")
                            .done();
  Ref<Save> save = record<Save>("Save", "save", "Writes a checkpoint now.").call_only().usage("fvlm.save()").done();
  Ref<ScaleRate> scale =
      record<ScaleRate>("ScaleLr", "scale_lr",
                        "Multiplies the learning rate of every group, from here to the end of the stage.")
          .field("factor", &ScaleRate::factor, number(above(0)), "0.5 halves it.")
          .argument()
          .required()
          .call_only()
          .usage("fvlm.scale_lr(0.5)")
          .done();
};

void walk(const Node* node, std::set<const Node*>& seen, std::vector<const RecordInfo*>& found) {
  if (!seen.insert(node).second) return;
  if (node->record() && std::find(found.begin(), found.end(), node->record()) == found.end())
    found.push_back(node->record());
  for (const Node* part : node->parts()) walk(part, seen, found);
}

} // namespace

Ref<std::vector<Action>> action_schema() {
  static const ActionRecords records;
  static const auto type = list(one_of(records.stop, records.save, records.scale), {.or_one = true});
  return type;
}

Ref<Plan> recipe_schema() {
  static const auto type =
      record<Plan>("Recipe", "recipe",
                   "The whole run: the model, what all stages share, and the stages in the order they run.")
          .field("name", &Plan::name, label(true), "Names the run's folder.")
          .required()
          .beside()
          .field("seed", &Plan::seed, whole(at_least(0)), "Data order, packing and initialisation derive from it.")
          .field("precision", &Plan::precision,
                 choice<Precision>(
                     {{"bf16", Precision::bf16, "bfloat16, with fp32 master weights"},
                      {"fp16", Precision::fp16, "float16, with fp32 master weights and a dynamic loss scale"},
                      {"tf32", Precision::tf32,
                       "float32; of the products, those that no plugin takes are in TF32 where the device has it"},
                      {"fp32", Precision::fp32, "float32"}}),
                 "What the model computes in.")
          .elsewhere({"dtype", "mixed_precision"})
          .field("gradients", &Plan::gradients,
                 choice<Gradients>({{"fp32", Gradients::fp32, "exact sums over the packs of a step"},
                                    {"bf16", Gradients::bf16, "half the memory, where precision is bf16"}}),
                 "What the gradients of parameters are held in until the step is taken.")
          .field("deterministic", &Plan::deterministic, flag(),
                 "Same bits in each run on a GPU too, at some cost in speed. A CPU run always repeats.")
          .field("model", &Plan::model, model_schema(), "The model.")
          .required()
          .field("kernels", &Plan::kernels, kernels(), "Which backends are wanted.")
          .field("speed", &Plan::speed, speed(), "Switches for work saved.")
          .field("loader", &Plan::loader, loader(), "How shards are read.")
          .beside()
          .field("checkpoint", &Plan::checkpoint, checkpoint(), "When the run is saved.")
          .beside()
          .elsewhere({"checkpoints", "save"})
          .field("guard", &Plan::guard, guard(), "What happens when numbers go wrong.")
          .field("quantization", &Plan::quantization, optional(quantization()),
                 "What stages that are quantization_aware round weights to.")
          .example("{ scheme = \"int8\" }")
          .field("log_every", &Plan::log_every, whole(at_least(1)), "How often metrics are written.")
          .unit("steps")
          .beside()
          .elsewhere({"logging_steps"})
          .field("stages", &Plan::stages, list(stage_schema(), {.least = 1, .most = 1000, .named = true}),
                 "The stages, in the order they run.")
          .items()
          .required()
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
    auto arguments = std::count_if(info->fields.begin(), info->fields.end(),
                                   [](const FieldInfo& f) { return f.place == Place::argument; });
    all.push_back({info->constructor, static_cast<int>(arguments), !info->call_only});
  }
  return all;
}

} // namespace fvlm::recipe
