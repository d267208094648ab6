// The schema of fvlm.stage "name" { }: one part of a training run.
#include "model/connector/settings.h"
#include "recipe/schema/containers.h"
#include "recipe/schema/schema.h"
#include "recipe/schema/values.h"

namespace fvlm::recipe {
namespace {

using namespace plan;

Ref<Batch> batch() {
  return record<Batch>("Batch", "",
                       "The samples of one optimizer step: it takes samples until a limit would be exceeded.")
      .usage("{ frames = 768, samples = 96 }")
      .field("samples", &Batch::samples, optional(integer(at_least(1))),
             "Maximum number of samples. Alone: the exact number, which fixes the number of steps.")
      .field("tokens", &Batch::tokens, optional(integer(at_least(1))),
             "Maximum number of tokens, visual and text together.")
      .field("frames", &Batch::frames, optional(integer(at_least(1))), "Maximum number of frames.")
      .shorthand("samples")
      .check([](Reader& reader, const Batch& batch) {
        if (!batch.samples && !batch.tokens && !batch.frames)
          reader.report_at("", "a batch needs a limit", "batch = 32, or { tokens = 65536 }");
      })
      .done();
}

Ref<Packing> packing() {
  auto capacity = automatic(integer(at_least(1)));
  return record<Packing>(
             "Packing", "",
             "The fixed capacity of one pack, which is the micro-batch: it affects speed and memory, not "
             "results. With tokens = \"memory\" it is as large as memory allows when training starts; `train "
             "--find-batch` measures packs of several sizes.")
      .usage("{ frames = 512, tokens = 8192, segments = 64 }")
      .field("frames", &Packing::frames, capacity,
             "Frame slots of a pack; \"auto\": in proportion to its tokens, as in the first 256 samples, and no fewer "
             "than the largest sample needs.")
      .field(
          "tokens", &Packing::tokens, pack_tokens(),
          "Token slots of a pack, visual and text together; \"auto\": 8,192, or more if the largest sample needs it; "
          "\"memory\": as many as the device's memory holds, with frames in proportion, and no more than a step needs. "
          "That is estimated once, from what is free when a run starts, or from `train --memory-mib`; a resumed run "
          "keeps it. `batch` is what it was: a step is divided into fewer packs.")
      .field("segments", &Packing::segments, capacity,
             "Maximum number of samples in a pack, the micro-batch size; \"auto\": as many as fit.")
      .aliases({"micro_batch", "micro_batch_size"})
      .field("window", &Packing::window, integer(at_least(1)),
             "Number of upcoming samples that the packer may choose from; 1: in order.")
      .unit("samples")
      .done();
}

Ref<ActivationCheckpointing> activation_checkpointing() {
  return record<ActivationCheckpointing>(
             "ActivationCheckpointing", "",
             "Which layers recompute their activations in the backward pass; \"light\": all "
             "layers, but only the outputs of norms, GELU and SwiGLU, which costs little "
             "time. One value for both towers, or one for each.")
      .usage("{ vision = \"all\", decoder = { every = 2 } }")
      .field("vision", &ActivationCheckpointing::vision, recompute(), "Layers of the vision tower, counted from 0.")
      .field("decoder", &ActivationCheckpointing::decoder, recompute(), "Layers of the decoder, counted from 0.")
      .broadcast()
      .done();
}

Ref<Control> control() {
  return record<Control>("Control", "", "A function that is called between steps and may control the run.")
      .usage("{ every = 500, run = function(m, memory) if m.loss > 5 then return fvlm.scale_lr(0.5) end end }")
      .field("every", &Control::every, integer(at_least(1)), "How often it is called.")
      .unit("steps")
      .required()
      .field(
          "run", &Control::run,
          lua_function("fun(m: table<string, number>, memory: table): fvlm.Action|fvlm.Action[]|nil"),
          "Gets the metrics and a table that is kept between calls (plain values, saved with checkpoints). m has "
          "step and what a line of metrics has, but for times and memory: m.loss, m.gradient_norm, m.samples, "
          "m[\"lr.GROUP\"] and so on. Where no step was applied since the last line, m.loss and m.gradient_norm are "
          "not a number. It also has the stage's last evaluation, which comes first where both are due: "
          "m[\"evaluation.SET.MODE.FIGURE\"], and m[\"evaluation.SET.FIGURE\"] for a set with one mode; nil before the "
          "first. Returns fvlm.stop_stage(), fvlm.save(), fvlm.scale_lr(0.5), a list of these, or nothing. Results are "
          "journaled: resuming under the same plan replays them.")
      .required()
      .done();
}

// The modes of every connector, each once. Which of them the model's own connector has is a rule of the whole plan.
Ref<std::string> mode(std::string plan::ConnectorMode::*doc) {
  std::vector<WordInfo> words;
  for (const connector::Settings& settings : connector::all_settings())
    for (const plan::ConnectorMode& mode : settings.make()->modes()) {
      const auto same = [&](const WordInfo& other) { return other.name == mode.name; };
      if (!(mode.*doc).empty() && std::ranges::none_of(words, same)) words.push_back({mode.name, mode.*doc});
    }
  return word(std::move(words));
}

Ref<EvaluationSet> evaluation_set() {
  return record<EvaluationSet>("EvaluationSet", "evaluation", "Held-out samples and what is measured on them.")
      .usage("fvlm.evaluation \"questions\" { data = fvlm.mix { \"mvbench/*.tar\" }, measure = \"choice\" }")
      .field("name", &EvaluationSet::name, identifier(false), "Name of the set in metrics and the report.")
      .argument()
      .required()
      .field("data", &EvaluationSet::data, mix_schema(), "The samples.")
      .required()
      .field("measure", &EvaluationSet::measure,
             choice<Measure>({{"loss", Measure::loss, "next-token loss on the answers"},
                              {"choice", Measure::choice, "multiple choice: the option with the lowest loss"},
                              {"preference", Measure::preference, "how often the chosen answer of a pair is likelier"},
                              {"answer", Measure::answer, "generated answers, compared with the expected ones"},
                              {"bits_per_byte", Measure::bits_per_byte,
                               "loss of every token that is not special, in bits for each byte of text"},
                              {"iou", Measure::iou, "boxes of generated answers, compared with the expected ones"},
                              {"retrieval", Measure::retrieval,
                               "which of all positives and negatives of the set are nearest to each query"}}),
             "The main figure.")
      .field("modes", &EvaluationSet::modes, list(mode(&ConnectorMode::doc), {.min = 1, .allow_single = true}),
             "How frames are encoded; the first mode determines the best checkpoint. Default: the first of the "
             "connector's modes.")
      .field("samples", &EvaluationSet::samples, integer(at_least(0)), "How many samples, always the same; 0: all.")
      .field("max_new_tokens", &EvaluationSet::max_new_tokens, optional(integer(at_least(1))),
             "Longest answer that is generated for the measures \"answer\" and \"iou\". Default: 128.")
      .unit("tokens")
      .field("entropy", &EvaluationSet::entropy, boolean(), "Also measure the attention entropy over a frame.")
      .field("show", &EvaluationSet::show, integer(at_least(0)),
             "Number of samples shown in the report with the model's answer and its attention over frames.")
      .check([](Reader& reader, const EvaluationSet& set) {
        if (set.data.teacher_prompt)
          reader.report_at(".data.teacher_prompt", "an evaluation has no teacher that would read it",
                           "leave it out: it belongs to the mix that a stage trains on");
        if (set.measure == Measure::retrieval && set.show > 0)
          reader.report_at(".show", "the measure \"retrieval\" has no answers to show", "leave it out");
        if (set.measure == Measure::retrieval && set.entropy)
          reader.report_at(".entropy", "the measure \"retrieval\" has no attention entropy", "leave it out");
        if (set.data.mask_history && set.measure == Measure::bits_per_byte)
          reader.report_at(".data.mask_history", "the measure \"bits_per_byte\" reads every token, answers or not",
                           "leave it out, or use the measure \"loss\"");
      })
      .done();
}

void check_documents(Reader& reader, const Stage& stage) {
  if (!stage.data.documents) return;
  if (const ObjectiveTerm* term = stage.needs_pairs())
    reader.report_at(".data.documents", fmt::format("fvlm.{} needs {}, and documents have none", term->name(),
                                                    term->embeds()             ? "queries and what they are to find"
                                                    : term->needs_judgements() ? "judgements of answers"
                                                                               : "pairs of answers"));
  if (stage.epochs)
    reader.report_at(".epochs", "documents are cut into rows, whose number is not known beforehand",
                     "set `samples` to a number of rows");
}

void check_rollouts(Reader& reader, const Stage& stage) {
  const Rollouts* rollouts = stage.rollouts();
  if (!rollouts) return;
  if (stage.objective.size() > 1)
    reader.report_at(".objective", "fvlm.grpo learns from the model's own answers, and other terms from the data's",
                     "give it a stage of its own");
  if (stage.data.documents)
    reader.report_at(".data.documents", "fvlm.grpo needs prompts to answer, and documents have none");
  if (rollouts->max_new_tokens >= stage.data.max_text_tokens)
    reader.report_at(".objective",
                     fmt::format("answers of {} tokens leave no room for a prompt in data.max_text_tokens = {}",
                                 rollouts->max_new_tokens, stage.data.max_text_tokens),
                     "raise data.max_text_tokens, which holds a prompt and its answer, or lower max_new_tokens");
}

void check_judgements(Reader& reader, const Stage& stage) {
  const ObjectiveTerm* term = stage.needs_judgements();
  if (term && stage.objective.size() > 1)
    reader.report_at(
        ".objective",
        fmt::format("fvlm.{} packs each answer beside one of another sample, which other terms would learn",
                    term->name()),
        "give it a stage of its own");
}

// Its samples have no labels, which other terms would learn.
void check_embeds(Reader& reader, const Stage& stage) {
  const ObjectiveTerm* term = stage.embeds();
  if (!term) return;
  if (stage.objective.size() > 1)
    reader.report_at(".objective",
                     fmt::format("fvlm.{} learns from queries and what they are to find, and other terms from answers",
                                 term->name()),
                     "give it a stage of its own");
  if (stage.data.preprocessed)
    reader.report_at(".data.preprocessed", "`preprocess` writes no retrieval samples",
                     "remove it: the shards are read");
}

// A `fields` map with an answer but without the two answers of a pair means that the source has no pairs.
void check_pairs(Reader& reader, const Stage& stage) {
  const ObjectiveTerm* term = stage.needs_pairs();
  if (!term || term->needs_judgements() || term->embeds()) return;
  for (size_t i = 0; i < stage.data.sources.size(); ++i) {
    const auto& fields = stage.data.sources[i].fields;
    bool other = fields.contains("assistant") || fields.contains("caption") || fields.contains("token_ids");
    if (other && !fields.contains("chosen_assistant") && !fields.contains("rejected_assistant"))
      reader.report_at(".data.sources" + index_part(i + 1) + ".fields",
                       fmt::format("fvlm.{} needs pairs of answers, and these fields have none", term->name()),
                       "map chosen_assistant and rejected_assistant");
  }
}

void check_teacher_prompt(Reader& reader, const Stage& stage) {
  for (size_t i = 0; i < stage.objective.size(); ++i)
    if (stage.objective[i] && stage.objective[i]->reads_teacher_prompt() && !stage.data.teacher_prompt)
      reader.report_at(".objective" + index_part(i + 1),
                       fmt::format("fvlm.{} has a teacher with a prompt of its own, and the mix has none",
                                   stage.objective[i]->name()),
                       "give the mix a teacher_prompt, such as \"Context: {context}\\nQuestion: {question}\"");
  if (stage.data.teacher_prompt && !stage.reads_teacher_prompt())
    reader.report_at(".data.teacher_prompt", "no term of the objective has a teacher that reads a prompt of its own",
                     "remove it, or add fvlm.kl { reads = \"teacher_prompt\" }");
}

void check_mask_history(Reader& reader, const Stage& stage) {
  const auto ignores_answers = [](const Term& term) {
    return term && (term->rollouts() || term->labels().on == LossOn::all || term->labels().first == 0);
  };
  if (stage.data.mask_history && !stage.objective.empty() && std::ranges::all_of(stage.objective, ignores_answers))
    reader.report_at(".data.mask_history", "no term of the objective learns from the answers of the data alone",
                     "leave it out, or use a term with on = \"answer\"");
}

// The cached states of a model that is its own teacher stay true as long as its decoder stays as it is.
void check_cached_teachers(Reader& reader, const Stage& stage) {
  const bool is_frozen = std::ranges::find(stage.freeze, "decoder") != stage.freeze.end();
  for (size_t i = 0; i < stage.objective.size(); ++i) {
    const Term& term = stage.objective[i];
    if (!term || !term->caches_teacher() || term->teacher()) continue;
    const std::string path = ".objective" + index_part(i + 1) + ".cache_teacher";
    if (!is_frozen)
      reader.report_at(path, "the model is its own teacher, and this stage trains its decoder",
                       "freeze = \"decoder\", or leave out cache_teacher");
    else if (stage.quantization_aware)
      reader.report_at(path, "the model is its own teacher, and this stage computes with its quantized weights",
                       "leave out cache_teacher or quantization_aware");
  }
}

} // namespace

Ref<Evaluation> evaluation_schema() {
  static const auto type =
      record<Evaluation>("Evaluation", "",
                         "What is measured on held-out samples, and when. Always at the end of the stage too.")
          .usage("{ every = 1000, fvlm.evaluation \"heldout\" { data = fvlm.mix { \"val/*.tar\" } } }")
          .field("every", &Evaluation::every, integer(at_least(0)), "How often; 0: only at the end of the stage.")
          .unit("steps")
          .aliases({"eval_steps", "eval_every"})
          .field("sets", &Evaluation::sets, list(evaluation_set(), {.named = true}), "The held-out sets.")
          .items()
          .done();
  return type;
}

Ref<Stage> stage_schema() {
  static const auto type =
      record<Stage>("Stage", "stage", "One part of the run: data, objective and optimizer for a number of samples.")
          .usage("fvlm.stage \"align\" { data = ..., objective = ..., optimizer = ..., samples = 1e6, batch = 32 }")
          .field("name", &Stage::name, identifier(false), "Names the stage's folder in the run.")
          .argument()
          .required()
          .field("from", &Stage::from, text(),
                 "What the stage starts from: an earlier stage, \"model\" (the recipe's `model`), or the path of a "
                 "model directory, of a checkpoint or of a run (its newest checkpoint). Default: the previous stage; "
                 "the first starts from \"model\".")
          .field("freeze", &Stage::freeze, list(text(), {.allow_single = true}), "Parameter groups that are frozen.")
          .field("data", &Stage::data, mix_schema(), "The samples.")
          .required()
          .field("mode", &Stage::mode, mode(&ConnectorMode::training_doc),
                 "How the connector encodes frames in training. Default: the first of its modes.")
          .field("objective", &Stage::objective, objective_schema(),
                 "The loss: a term, or a list of weighted terms that are summed.")
          .required()
          .aliases({"loss"})
          .example("{ fvlm.dpo { beta = 0.1 }, fvlm.next_token { weight = 0.1 } }")
          .field("optimizer", &Stage::optimizer, optimizer_schema(), "The optimizer.")
          .required()
          .field("schedule", &Stage::schedule, schedule_schema(),
                 "The learning rate schedule. A function of the stage's progress (0 to 1) returns the factor on the "
                 "base rate.")
          .aliases({"lr_scheduler", "scheduler"})
          .example("fvlm.cosine { to_share = 0.1, warmup = 0.03 }")
          .field("samples", &Stage::samples, integer(at_least(1)),
                 "Number of samples that the stage trains on, over which the schedule runs. Required without `epochs`.")
          .required_without("epochs")
          .aliases({"steps", "max_steps"})
          .field("epochs", &Stage::epochs, optional(integer(at_least(1))),
                 "Instead of `samples`: a multiple of the number of samples in the mix, drawn by its weights; for a "
                 "single source, the number of passes. With `samples`: whichever is less. Samples are counted when the "
                 "stage starts, broken ones too, whose places others take from a further pass.")
          .aliases({"num_epochs", "num_train_epochs", "max_epochs"})
          .field("batch", &Stage::batch, batch(), "Samples of one optimizer step, or limits by tokens and frames.")
          .required()
          .aliases({"batch_size", "per_device_train_batch_size"})
          .hint("it decides what is learned; for packs as large as memory allows: packing = { tokens = \"memory\" }")
          .example("32")
          .field("packing", &Stage::packing, packing(), "How samples are packed into fixed shapes.")
          .field("activation_checkpointing", &Stage::activation_checkpointing, activation_checkpointing(),
                 "Which activations to recompute in the backward pass, to save memory.")
          .aliases({"gradient_checkpointing", "recompute"})
          .example("{ vision = \"all\", decoder = { every = 2 } }")
          .field("quantization_aware", &Stage::quantization_aware, boolean(),
                 "Train through the recipe's quantization, with a straight-through gradient.")
          .field("evaluation", &Stage::evaluation, evaluation_schema(), "What is measured on held-out samples.")
          .excluded_from_hash()
          .aliases({"eval", "evaluate"})
          .field("control", &Stage::control, optional(control()), "A function that may control the run between steps.")
          .field("steps", &Stage::steps, optional(integer()),
                 "samples / batch, rounded up; absent where batches are limited by tokens or frames.")
          .derived()
          .field("warmup_steps", &Stage::warmup_steps, optional(integer()),
                 "The schedule's warm-up in steps, rounded to the nearest.")
          .derived()
          .foreign("lr_scheduler_type", "write schedule = fvlm.cosine { warmup = 0.03 }, or another of REFERENCE.md")
          .foreign("save_steps", "it is of the recipe, not of a stage: checkpoint = { every = ... }")
          .foreign("dataset", "write data = fvlm.mix { \"train.jsonl\" }")
          .foreign("max_steps", "set samples = steps x batch: a stage is as long as its samples")
          .foreign("num_steps", "set samples = steps x batch: a stage is as long as its samples")
          .foreign("gradient_accumulation_steps", micro_batch_advice)
          .foreign("per_device_train_batch_size", micro_batch_advice)
          .check(check_pairs)
          .check(check_judgements)
          .check(check_embeds)
          .check(check_rollouts)
          .check(check_teacher_prompt)
          .check(check_mask_history)
          .check(check_cached_teachers)
          .check(check_documents)
          .done();
  return type;
}

} // namespace fvlm::recipe
