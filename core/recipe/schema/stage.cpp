// fvlm.stage "name" { }: one part of a training run.
#include "recipe/schema/containers.h"
#include "recipe/schema/schema.h"
#include "recipe/schema/values.h"

namespace fvlm::recipe {
namespace {

using namespace plan;

Ref<Batch> batch() {
  return record<Batch>("Batch", "", "What one optimizer step sees: it takes samples until a limit would be passed.")
      .usage("{ frames = 768, samples = 96 }")
      .field("samples", &Batch::samples, optional(whole(at_least(1))),
             "Most samples. Alone: exactly so many, and the number of steps is known.")
      .field("tokens", &Batch::tokens, optional(whole(at_least(1))), "Most tokens, visual and text together.")
      .field("frames", &Batch::frames, optional(whole(at_least(1))), "Most frames.")
      .shorthand("samples")
      .check([](Reader& reader, const Batch& batch) {
        if (!batch.samples && !batch.tokens && !batch.frames)
          reader.complain_at("", "a batch needs a limit", "batch = 32, or { tokens = 65536 }");
      })
      .done();
}

Ref<Packing> packing() {
  auto capacity = automatic(whole(at_least(1)));
  return record<Packing>(
             "Packing", "",
             "The fixed size of one pack, which is the micro-batch: it changes speed and memory, and not "
             "what is learnt. The free memory is not looked at: `train --find-batch` searches what it holds.")
      .usage("{ frames = 512, tokens = 8192, segments = 64 }")
      .field("frames", &Packing::frames, capacity,
             "Frame slots of a pack; \"auto\": as many as go with its tokens in the first 256 samples, and no fewer "
             "than the "
             "largest sample needs.")
      .field("tokens", &Packing::tokens, capacity,
             "Token slots of a pack, visual and text together; \"auto\": 8,192, or what the largest sample needs where "
             "that is "
             "more.")
      .field("segments", &Packing::segments, capacity,
             "Samples a pack may hold; the micro-batch in samples; \"auto\": as many as fit.")
      .elsewhere({"micro_batch", "micro_batch_size"})
      .field("window", &Packing::window, whole(at_least(1)),
             "How many samples ahead the packer may choose from; 1: in order of arrival.")
      .unit("samples")
      .done();
}

Ref<ActivationCheckpointing> activation_checkpointing() {
  return record<ActivationCheckpointing>("ActivationCheckpointing", "",
                                         "Which layers forget their activations and compute them again in the backward "
                                         "pass; \"light\": all, but only what norms, GELU and SwiGLU made, which costs "
                                         "little time. One word for both towers, or each on its own.")
      .usage("{ vision = \"all\", decoder = { every = 2 } }")
      .field("vision", &ActivationCheckpointing::vision, recompute(), "Layers of the vision tower, counted from 0.")
      .field("decoder", &ActivationCheckpointing::decoder, recompute(), "Layers of the decoder, counted from 0.")
      .each()
      .done();
}

Ref<Control> control() {
  return record<Control>("Control", "", "A function that looks at the run between steps and may change its course.")
      .usage("{ every = 500, run = function(m, memory) if m.loss > 5 then return fvlm.scale_lr(0.5) end end }")
      .field("every", &Control::every, whole(at_least(1)), "How often it is called.")
      .unit("steps")
      .required()
      .field("run", &Control::run,
             lua_function("fun(m: table<string, number>, memory: table): fvlm.Action|fvlm.Action[]|nil"),
             "Gets the metrics and a table that is kept between calls (plain values, saved with checkpoints). Answers "
             "with "
             "fvlm.stop_stage(), fvlm.save(), fvlm.scale_lr(0.5), a list of these, or nothing. Answers are journaled: "
             "a resume under the same plan replays them.")
      .required()
      .done();
}

Ref<Mode> mode() {
  return choice<Mode>({{"coarse_fine", Mode::coarse_fine, "two passes, as the published models were trained"},
                       {"refined", Mode::refined, "the queries are made once more, from the fine visual tokens"},
                       {"coarse_only", Mode::coarse_only, "the static query alone"},
                       {"autoregressive", Mode::autoregressive, "frame by frame, as in use"}});
}

Ref<Mode> training_mode() {
  return choice<Mode>({{"coarse_fine", Mode::coarse_fine,
                        "each frame is read with the static query, then with a query made from those coarse tokens"},
                       {"refined", Mode::refined,
                        "the query is made once more, from the fine tokens, as it is in use; the two passes before it "
                        "have no gradient"}});
}

Ref<EvaluationSet> evaluation_set() {
  return record<EvaluationSet>("EvaluationSet", "evaluation", "Held-out samples and what is measured on them.")
      .usage("fvlm.evaluation \"questions\" { data = fvlm.mix { \"mvbench/*.tar\" }, measure = \"choice\" }")
      .field("name", &EvaluationSet::name, label(false), "In metrics and the report.")
      .argument()
      .required()
      .field("data", &EvaluationSet::data, mix_schema(), "The samples.")
      .required()
      .field(
          "measure", &EvaluationSet::measure,
          choice<Measure>({{"loss", Measure::loss, "next-token loss on the answers"},
                           {"choice", Measure::choice, "multiple choice: the option with the lowest loss"},
                           {"preference", Measure::preference, "how often the chosen answer of a pair is likelier"}}),
          "The main figure.")
      .field("modes", &EvaluationSet::modes, list(mode(), {.least = 1, .or_one = true}),
             "How frames are read; the first decides which checkpoint is best.")
      .field("samples", &EvaluationSet::samples, whole(at_least(0)), "How many samples, always the same; 0: all.")
      .field("entropy", &EvaluationSet::entropy, flag(), "Also measure the entropy of the attention over a frame.")
      .field("show", &EvaluationSet::show, whole(at_least(0)),
             "Samples shown in the report with the model's answer and where it looked.")
      .done();
}

void check_packing(Reader& reader, const Stage& stage) {
  const Packing& packing = stage.packing;
  const auto [most_frames, most_tokens] = stage.largest_sample();
  if (packing.frames && *packing.frames < most_frames)
    reader.complain_at(".packing.frames",
                       fmt::format("a pack of {} frames cannot hold a sample of {}", *packing.frames, most_frames),
                       "raise it, or lower data.max_frames");
  if (packing.tokens && *packing.tokens < most_tokens)
    reader.complain_at(".packing.tokens",
                       fmt::format("a pack of {} tokens cannot hold a sample of {} ({} x {} frames and {} text tokens)",
                                   *packing.tokens, most_tokens, stage.texts(), most_frames,
                                   stage.data.max_text_tokens),
                       "raise it, or lower data.max_text_tokens or data.max_frames");
  if (stage.batch.frames && *stage.batch.frames < most_frames)
    reader.complain_at(".batch.frames", fmt::format("a batch of {} frames cannot hold a sample of {}",
                                                    *stage.batch.frames, most_frames));
  if (stage.batch.tokens && *stage.batch.tokens < most_tokens)
    reader.complain_at(".batch.tokens", fmt::format("a batch of {} tokens cannot hold a sample of {}",
                                                    *stage.batch.tokens, most_tokens));
}

// A field map that names answers, but not the two of a pair, says that there are none.
void check_pairs(Reader& reader, const Stage& stage) {
  const ObjectiveTerm* term = stage.needs_pairs();
  if (!term) return;
  for (size_t i = 0; i < stage.data.sources.size(); ++i) {
    const auto& fields = stage.data.sources[i].fields;
    bool other = fields.contains("assistant") || fields.contains("caption") || fields.contains("token_ids");
    if (other && !fields.contains("chosen_assistant") && !fields.contains("rejected_assistant"))
      reader.complain_at(".data.sources" + index_part(i + 1) + ".fields",
                         fmt::format("fvlm.{} needs pairs, and these fields name no pair", term->name()),
                         "map chosen_assistant and rejected_assistant");
  }
}

} // namespace

Ref<Evaluation> evaluation_schema() {
  static const auto type =
      record<Evaluation>("Evaluation", "",
                         "What is measured on held-out samples, and when. Always at the end of the stage too.")
          .usage("{ every = 1000, fvlm.evaluation \"heldout\" { data = fvlm.mix { \"val/*.tar\" } } }")
          .field("every", &Evaluation::every, whole(at_least(0)), "How often; 0: only at the end of the stage.")
          .unit("steps")
          .field("sets", &Evaluation::sets, list(evaluation_set(), {.named = true}), "The held-out sets.")
          .items()
          .done();
  return type;
}

Ref<Stage> stage_schema() {
  static const auto type =
      record<Stage>("Stage", "stage", "One part of the run: data, objective and optimizer for so many samples.")
          .usage("fvlm.stage \"align\" { data = ..., objective = ..., optimizer = ..., samples = 1e6, batch = 32 }")
          .field("name", &Stage::name, label(false), "Names the stage's folder in the run.")
          .argument()
          .required()
          .field("from", &Stage::from, text(),
                 "What the stage starts from: an earlier stage, \"model\" (the towers as the recipe names them), or "
                 "the path of a "
                 "checkpoint or model directory. Default: the stage before it; the first starts from \"model\".")
          .field("freeze", &Stage::freeze, list(text(), {.or_one = true}), "Parameter groups that are not trained.")
          .field("data", &Stage::data, mix_schema(), "The samples.")
          .required()
          .field("mode", &Stage::mode, training_mode(), "How the foveated connector reads frames in training.")
          .field("objective", &Stage::objective, objective_schema(),
                 "What is minimised: a term, or a list of weighted terms that are summed.")
          .required()
          .elsewhere({"loss"})
          .example("{ fvlm.dpo { beta = 0.1 }, fvlm.next_token { weight = 0.1 } }")
          .field("optimizer", &Stage::optimizer, optimizer_schema(), "How parameters are stepped.")
          .required()
          .field("schedule", &Stage::schedule, schedule_schema(),
                 "How the learning rate changes on the way. A function of the stage's progress (0 to 1) gives the "
                 "factor on the base rate.")
          .elsewhere({"lr_scheduler", "scheduler"})
          .example("fvlm.cosine { to_share = 0.1, warmup = 0.03 }")
          .field("samples", &Stage::samples, whole(at_least(1)),
                 "How many samples the stage sees; the schedule spans them. Needed where `epochs` is not there.")
          .required_without("epochs")
          .elsewhere({"steps", "max_steps"})
          .field(
              "epochs", &Stage::epochs, optional(whole(at_least(1))),
              "In place of `samples`: so many times as many samples as the mix has, drawn by its weights; of a single "
              "source that many passes. Beside `samples`: whichever is less. They are counted when the stage begins.")
          .elsewhere({"num_epochs", "num_train_epochs", "max_epochs"})
          .field("batch", &Stage::batch, batch(), "Samples of one optimizer step, or limits by tokens and frames.")
          .required()
          .elsewhere({"batch_size"})
          .example("32")
          .field("packing", &Stage::packing, packing(), "How samples are packed into fixed shapes.")
          .field("activation_checkpointing", &Stage::activation_checkpointing, activation_checkpointing(),
                 "Memory for time.")
          .elsewhere({"gradient_checkpointing", "recompute"})
          .example("{ vision = \"all\", decoder = { every = 2 } }")
          .field("quantization_aware", &Stage::quantization_aware, flag(),
                 "Train through the recipe's quantization, with a straight-through gradient.")
          .field("evaluation", &Stage::evaluation, evaluation_schema(), "What is measured on held-out samples.")
          .beside()
          .elsewhere({"eval", "evaluate"})
          .field("control", &Stage::control, optional(control()), "A function that looks at the run between steps.")
          .field("steps", &Stage::steps, optional(whole()),
                 "samples / batch, rounded up; absent where tokens or frames make batches.")
          .derived()
          .field("warmup_steps", &Stage::warmup_steps, optional(whole()),
                 "The schedule's warm-up in steps, rounded to the nearest.")
          .derived()
          .check(check_packing)
          .check(check_pairs)
          .done();
  return type;
}

} // namespace fvlm::recipe
