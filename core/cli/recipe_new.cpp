// fvlm-engine recipe new: writes a recipe for a model and the data that it is to learn from, by a look at both.
#include "base/error.h"
#include "base/file.h"
#include "base/log.h"
#include "base/scratch_folder.h"
#include "base/shell_word.h"
#include "base/text.h"
#include "budget/described_model.h"
#include "budget/frame_rows.h"
#include "cli/plugin_options.h"
#include "cli/processor_options.h"
#include "cli/progress.h"
#include "cli/recipe_draft.h"
#include "cli/recipe_options.h"
#include "cli/short_answers.h"
#include "cli/verb.h"
#include "data/answer_end.h"
#include "data/media/video.h"
#include "data/preprocess.h"
#include "data/samples/sample_content.h"
#include "data/shards/retrying_file.h"
#include "data/shards/shard_set.h"
#include "data/stream/data_sizes.h"
#include "data/stream/mix_samples.h"
#include "model/weights/generation_config.h"
#include "model/weights/model_directory.h"
#include "model/weights/resolve_model.h"
#include "model/weights/visual_rows.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <optional>

namespace fvlm::cli {
namespace {

namespace fs = std::filesystem;

constexpr int64_t most_looked_at = 512; // samples of each source
constexpr int64_t most_negatives = 64;  // that a mix reads
constexpr int64_t any_number = int64_t{1} << 30;

// What the samples of a mix are like.
struct Findings {
  std::vector<int64_t> samples; // of each source
  int64_t looked_at = 0, usable = 0, broken = 0, pairs = 0, judged = 0, with_choice = 0;
  int64_t to_embed = 0, most_negatives = 0; // retrieval samples, and the negatives of one
  int64_t most_frames = 0, most_tokens = 0;
  ShortAnswers short_answers;
  std::string first_reason; // why a sample cannot be used

  bool is_complete() const { // every sample was looked at
    return std::all_of(samples.begin(), samples.end(), [](int64_t size) { return size <= most_looked_at; });
  }
  bool are_pairs() const { return 2 * pairs > usable; }
  bool are_to_embed() const { return 2 * to_embed > usable; }
  bool are_judged() const { return judged > 0 && judged == usable; }
};

// Of cells of a video: fewer of its frames are read where it has more.
int64_t most_video_cells(const plan::Plan& plan) {
  constexpr int64_t usual = 4096;
  const auto positions = budget::decoder_positions(plan.model);
  return positions ? std::min(usual, *positions / 2) : usual;
}

int64_t needed_frames(const Sample& sample, int64_t most_video_cells) {
  if (!sample.is_video_of_cells()) return sample.frames;
  const ImageGrid video = sample.grids().front();
  return std::min(sample.frames, std::max(most_video_cells, video.step_cells()));
}

void count(const MeasuredSample& measured, int64_t most_video_cells, Findings& seen) {
  ++seen.looked_at;
  if (!measured.sample) {
    seen.broken += measured.skipped.broken;
    if (seen.first_reason.empty()) seen.first_reason = place_of(measured.skipped) + ": " + measured.skipped.reason;
    return;
  }
  const Sample& sample = *measured.sample;
  ++seen.usable;
  seen.with_choice += sample.correct_choice.has_value();
  seen.pairs += sample.texts.size() == 2 && !sample.correct_choice;
  seen.judged += sample.texts.size() == 1 && sample.is_desirable;
  seen.short_answers.add(sample);
  seen.to_embed += !sample.inputs.empty();
  seen.most_negatives = std::max(seen.most_negatives, std::ssize(sample.inputs) - 2);
  for (const auto& part : packed_parts(measured.sample)) {
    seen.most_frames = std::max(seen.most_frames, needed_frames(*part, most_video_cells));
    for (const SampleText& text : part->texts) seen.most_tokens = std::max(seen.most_tokens, text.tokens());
  }
}

// A stage learns from one kind: pairs of answers, queries with what they are to find, or single answers; the others
// would be skipped.
void refuse_two_kinds(const Findings& seen, const std::string& label) {
  constexpr int64_t few = 20; // one of so many is an accident
  const bool embeds = seen.to_embed > seen.pairs;
  const int64_t own = embeds ? seen.to_embed : seen.pairs, others = seen.usable - own, fewer = std::min(own, others);
  if (fewer == 0) return;
  const char* kind = embeds ? "queries with what they are to find" : "pairs of answers";
  const std::string found = fmt::format("{}: of {} samples looked at {} are {}, and {} are not", label,
                                        grouped(seen.usable), grouped(own), kind, grouped(others));
  if (fewer * few < seen.usable) {
    log_warning("{}; the stage will skip the {}", found,
                2 * own > seen.usable ? "others"
                : embeds              ? "queries"
                                      : "pairs");
    return;
  }
  if (embeds)
    throw Error(ErrorKind::data, found + ", and a stage learns from one kind")
        .advise("write a recipe for each, the second with the run of the first as --model");
  throw Error(ErrorKind::data, found + ", and a stage learns from one kind")
      .advise("write a recipe for each, the second with the run of the first as --model; or learn one answer of each "
              "pair, by the key that has its text: --field assistant=KEY");
}

// Throws Error(data) where less than a half of the samples can be used, or where they are of two kinds.
Findings look_at(const plan::Plan& plan, plan::Mix mix, const Tokenizer& tokenizer, const VideoDecoder* video,
                 const std::string& label) {
  const FramePreparation preparation = frame_preparation(plan.model);
  mix.max_text_tokens = any_number;
  mix.negatives = most_negatives;
  if (preparation.makes_tiles()) mix.max_frames = any_number;
  const auto rows = visual_rows(plan.model);
  Progress progress("looking at " + label);
  const MixSamples samples(
      mix, tokenizer, preparation, video, rows, {},
      [&](const std::string& source, int64_t done, int64_t all) { progress.steps(source, done, all); });
  Findings seen{.samples = samples.sizes()};
  const std::vector<MeasuredSample> all = measure_evenly(samples, most_looked_at);
  progress.finish();
  for (const MeasuredSample& measured : all) count(measured, most_video_cells(plan), seen);
  if (2 * seen.usable < seen.looked_at)
    throw Error(ErrorKind::data, "{} of the {} samples looked at cannot be used, the first of them: {}",
                grouped(seen.looked_at - seen.usable), grouped(seen.looked_at), seen.first_reason)
        .advise("docs/data.md says how samples may lie; keys of other names need --field PART=KEY, and text-only "
                "samples in a tar --text");
  if (seen.usable < seen.looked_at)
    log_warning("{} of the {} samples looked at cannot be used and will be skipped, the first of them: {}{}",
                grouped(seen.looked_at - seen.usable), grouped(seen.looked_at), seen.first_reason,
                plan.loader.quarantine.exceeded_by(seen.broken, seen.looked_at)
                    ? "; `train` stops at so many broken ones: repair or remove them, or raise loader.quarantine.share "
                      "in the recipe"
                    : "");
  refuse_two_kinds(seen, label);
  return seen;
}

// The same of what is trained on. Some templates write the thoughts of the last answer alone, and so do not show which
// parts of a longer conversation are answers.
Findings look_at_training(const plan::Plan& plan, plan::Mix& mix, const Tokenizer& tokenizer, const VideoDecoder* video,
                          RecipeDraft& draft) {
  const std::string label = "the data";
  try {
    return look_at(plan, mix, tokenizer, video, label);
  } catch (const Error&) {
    if (!draft.chat_template) throw;
    mix.mask_history = true;
    try {
      Findings seen = look_at(plan, mix, tokenizer, video, label);
      draft.mask_history = true;
      log_warning("of conversations with several answers the last one alone is learnt (mask_history = true): the "
                  "model's chat template writes earlier ones otherwise");
      return seen;
    } catch (const Error&) { // it is something else
    }
    throw;
  }
}

int64_t with_room(int64_t seen, bool is_complete, int64_t step) {
  const int64_t wanted = is_complete ? seen : seen + seen / 2;
  return std::max(step, (wanted + step - 1) / step * step);
}

// The limits of a sample, so that those seen fit and the longest allowed fits in the decoder's positions.
void set_limits(const plan::Plan& plan, const Findings& seen, RecipeDraft& draft) {
  const int64_t rows = budget::most_rows_per_frame(plan.model), usual_frames = plan::Mix{}.max_frames;
  const auto positions = budget::decoder_positions(plan.model);
  int64_t tokens = with_room(seen.most_tokens, seen.is_complete(), 32);
  int64_t frames = std::max(usual_frames, with_room(seen.most_frames, seen.is_complete(), 1));
  if (positions) {
    const int64_t seen_frames = rows > 0 ? std::max<int64_t>(1, seen.most_frames) : 0;
    tokens = std::min(tokens, *positions - seen_frames * rows);
    if (tokens < 2)
      throw Error(ErrorKind::data, "a sample has {} frames of {} rows each, and the decoder {} positions",
                  grouped(seen_frames), grouped(rows), grouped(*positions))
          .advise("leave such samples out, or take a decoder with more positions");
    if (rows > 0) frames = std::min(frames, std::max(seen_frames, (*positions - tokens) / rows));
  }
  draft.max_text_tokens = tokens;
  if (frames != usual_frames) draft.max_frames = frames;
}

const char* kind_of(const Findings& seen) {
  return seen.are_pairs()      ? "pairs of answers"
         : seen.are_to_embed() ? "queries with what they are to find"
         : seen.are_judged()   ? "answers that are said to be good or not"
                               : "questions and answers, or captions";
}

// A new connector is random: what the model would say before training, which preferences are compared to, means
// nothing.
void require_trained_connector(const RecipeDraft& draft, const Findings& seen) {
  if (!draft.directory.empty() || !draft.learns_preferences()) return;
  Error error(
      ErrorKind::data,
      fmt::format("the samples are {}, and the connector between --vision and --decoder is new", kind_of(seen)));
  throw error.advise("train it on answers first, and give its run as --model{}",
                     seen.are_pairs()
                         ? "; or learn one answer of each pair, by the key that has its text: --field assistant=KEY"
                         : "");
}

std::vector<std::string> about(const RecipeDraft& draft, const Findings& seen, const std::string& file) {
  std::vector<std::string> names;
  for (const auto& source : draft.train) names.push_back(source.pattern);
  const std::string model = draft.directory.empty() ? draft.vision + " and " + draft.decoder : draft.directory;
  return {
      fmt::format("Trains {} on {}", model, join(names, ", ")) + (draft.lora_rank > 0 ? " by LoRA." : "."),
      fmt::format("{}, {}; of {} looked at, at most {} and {} of text.", counted(draft.samples(), "sample"),
                  kind_of(seen), grouped(seen.looked_at), counted(seen.most_frames, "frame"),
                  counted(seen.most_tokens, "token")),
      "Written by `fvlm-engine recipe new`. recipes/REFERENCE.md says what else can stand here.",
      "",
      fmt::format("  fvlm-engine plan {} --budget   # the memory that it needs", shell_word(file)),
      fmt::format("  fvlm-engine train {}           # the same command resumes", shell_word(file)),
  };
}

// Throws Error(data) for a model that the recipe could name and not train.
void require_trainable(const ModelDirectory& model, bool by_lora) {
  model.require_no_adapters("a recipe's model");
  if (!by_lora) return model.require_plain("training without --lora");
  for (const auto& [name, scheme] : model.schemes())
    if (!name.starts_with("decoder."))
      throw Error(ErrorKind::data, "{} is quantized to {}, and --lora trains adapters of the decoder alone", name,
                  scheme->name)
          .at(model.path().string())
          .advise("quantize the decoder alone: export --quantize {} --skip 'vision.*' --skip 'connector.*'",
                  scheme->name);
}

// The model that the command line names. Of a run it is the newest checkpoint.
void read_model(const ParsedOptions& parsed, RecipeDraft& draft) {
  draft.vision = parsed.value_or("vision", "");
  draft.decoder = parsed.value_or("decoder", "");
  const auto named = parsed.value("model");
  if (named.has_value() == (!draft.vision.empty() && !draft.decoder.empty()))
    throw Error(ErrorKind::usage, "which model is to learn? Give either --model, or --vision and --decoder")
        .advise("--model DIR is a model directory or a run, --vision DIR and --decoder DIR are Hugging Face folders");
  if (!named) {
    // The foveated connector attends to keys and values of every layer, which no encoder but DINOv2 gives.
    const auto config = HuggingFaceFolder::open(draft.vision).config;
    draft.connector = config.value("model_type", "").starts_with("dinov2") ? "foveated" : "mlp";
    return;
  }
  draft.directory = resolve_model(*named).string();
  require_trainable(ModelDirectory::open(draft.directory), parsed.value("lora").has_value());
  require_lasting(draft.directory);
}

std::vector<RecipeDraft::Source> sources_of(const ParsedOptions& parsed, const char* option, const char* text_option) {
  std::vector<RecipeDraft::Source> sources;
  const auto fields = source_fields(parsed);
  for (const std::string& pattern : parsed.values(option)) sources.push_back({.pattern = pattern, .fields = fields});
  if (text_option)
    for (const std::string& pattern : parsed.values(text_option))
      sources.push_back({.pattern = pattern, .text_only = true, .fields = fields});
  return sources;
}

// Those of --held-out: files, or a share of each source's samples such as 2%, which the draft's sources get, too.
std::vector<RecipeDraft::Source> held_out_of(const ParsedOptions& parsed, std::vector<RecipeDraft::Source>& train) {
  const std::vector<std::string> given = parsed.values("held-out");
  const bool has_share = std::ranges::any_of(given, [](const std::string& each) { return each.ends_with('%'); });
  if (!has_share) return sources_of(parsed, "held-out", nullptr);
  const std::string& share = given.front();
  double percent = 0;
  const auto [end, error] = std::from_chars(share.data(), share.data() + share.size(), percent);
  if (given.size() > 1 || error != std::errc{} || std::string_view(end, share.data() + share.size()) != "%" ||
      percent <= 0 || percent >= 100)
    throw Error(ErrorKind::usage, "--held-out: expected files, or one share above 0% and below 100%, got '{}'",
                fmt::join(given, "' and '"));
  for (RecipeDraft::Source& source : train) source.held_out = fmt::format("{:g}", percent / 100);
  return train;
}

RecipeDraft draft_of(const ParsedOptions& parsed) {
  RecipeDraft draft;
  const fs::path file = *parsed.value("FILE");
  if (file.extension() != ".lua")
    throw Error(ErrorKind::usage, "a recipe is a .lua file, and this is {}", file.string());
  if (fs::exists(fs::symlink_status(file)))
    throw Error(ErrorKind::output, "the file already exists").at(file.string()).advise("name another, or remove it");
  draft.name = file.stem().string();
  if (draft.name.find_first_not_of("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-.") !=
      std::string::npos)
    throw Error(ErrorKind::usage, "'{}' cannot be the name of a run", draft.name)
        .advise("letters, digits, '_', '-' and '.'");
  read_model(parsed, draft);
  draft.lora_rank = parsed.integer_or("lora", 0, 1);
  draft.train = sources_of(parsed, "data", "text");
  draft.held_out = held_out_of(parsed, draft.train);
  if (draft.train.empty()) throw Error(ErrorKind::usage, "no data are named").advise("--data train.jsonl, for example");
  draft.root = parsed.value("root");
  if (parsed.value("image-frames")) draft.image_frames = parsed.integer_or("image-frames", 1, 1);
  draft.limits = processor_overrides_of(parsed);
  draft.epochs = parsed.integer_or("epochs", 1, 1);
  draft.batch = parsed.integer_or("batch", 16, 1);
  return draft;
}

// The draft as other verbs would read it.
recipe::Resolved resolved(const RecipeDraft& draft, const ParsedOptions& parsed) {
  const ScratchFolder folder;
  const fs::path file = folder / "draft.lua";
  write_file_atomic(file, draft.lua());
  try {
    return recipe::resolve(recipe_request(parsed, file.string()));
  } catch (const Error& error) {
    if (!error.where().starts_with(file.string())) throw;
    throw Error(error.kind(), error.what()).advise(error.advice()); // nobody knows the draft's lines
  }
}

Options options_of_recipe_new() {
  Options options(
      "recipe new FILE (--model DIR | --vision DIR --decoder DIR) --data FORM [--text FORM] [--held-out FORM|2%]\n"
      "    [--lora RANK] [--epochs N] [--batch N] [--root DIR] [--field PART=KEY] [--image-frames N]\n"
      "    [--min-pixels N] [--max-pixels N] [--video-min-pixels N] [--video-max-pixels N] [--json]",
      "Write a recipe that trains a model on data, by a look at both: whether they are answers, pairs of\n"
      "answers or queries with what they are to find, how long their texts are and how many frames they\n"
      "have, and which chat template the model was trained with. Learning rates are usual ones for training a\n"
      "model further.",
      "recipe new mine.lua --model models/smolvlm --data train.jsonl --held-out test.jsonl --lora 16");
  with_plugin_options(options)
      .positional("FILE", "the recipe to write, NAME.lua; its run will be runs/NAME")
      .value("model", "DIR",
             "a model directory, a checkpoint or a run folder (its newest checkpoint), of a stage that is done")
      .value("vision", "DIR",
             "in place of --model, with --decoder: a Hugging Face folder of an encoder; the connector between them is "
             "new: foveated for DINOv2, else an MLP")
      .value("decoder", "DIR", "a Hugging Face folder of a language model")
      .repeated_value(
          "data", "FORM",
          "samples, as in a recipe's `shards`: .jsonl, .json, .tsv, .parquet, .tar, folders, and patterns of them "
          "(repeatable)")
      .repeated_value("text", "FORM", "the same of text-only samples (repeatable)")
      .repeated_value("held-out", "FORM",
                      "samples, or a share of --data and --text such as 2%, that are measured ten times in the course "
                      "of training: options and pairs by likelihood, queries by what they find, "
                      "questions with short answers by generated ones, others by their loss (repeatable)")
      .value("root", "DIR", "what paths in the files are relative to; default: the folder of each file")
      .repeated_value(
          "field", "PART=KEY",
          "the key of a part of a sample, as in a recipe's `fields` (repeatable); default: by a look at the first")
      .value("lora", "RANK",
             "train LoRA adapters of this rank on all linears of the decoder, and nothing else but a new connector")
      .value("epochs", "N", "passes over the data; default 1")
      .value("batch", "N", "samples of a step; default 16")
      .value("image-frames", "N", "repeat a still image to N frames, for models that look at videos; default 1");
  with_processor_options(options).flag("json", "print one JSON document on standard output");
  return options;
}

// The JSON of the first sample that has one which can be read: broken samples are counted later, with their places.
std::optional<nlohmann::json> first_json(const ShardSet& shards) {
  constexpr int64_t most = 256;
  for (int64_t i = 0; i < std::min(shards.size(), most); ++i) try {
      const SampleLocation place = shards.locate(i);
      const auto shard = shards.shard(place);
      if (auto json = shard->json(shard->sample(place.sample))) return json;
    } catch (const ReadError&) {
      throw;
    } catch (const Error&) {
      continue;
    }
  return {};
}

// Where a source's first sample has its texts under other names, and the command line does not say which.
void name_fields(std::vector<RecipeDraft::Source>& sources, const RecipeDraft& draft) {
  for (RecipeDraft::Source& source : sources) {
    if (!source.fields.empty()) continue;
    plan::Source described;
    described.root = draft.root;
    const ShardSet shards({source.pattern}, with_root({}, described));
    if (const auto json = first_json(shards)) source.fields = suggested_fields(*json);
  }
}

// How frames and chats are read: as the run did that trained the model, or else as the model's folders say.
void read_settings(const plan::Model& model, const Tokenizer& tokenizer, RecipeDraft& draft) {
  const plan::ConnectorSettings& connector = *model.connector;
  const std::string usual = connector.mode_names().front();
  if (connector.inference_mode() != usual) draft.evaluation_mode = connector.inference_mode();
  if (connector.recommended_training_mode() != usual) draft.mode = connector.recommended_training_mode();
  const auto trained = draft.directory.empty() ? std::nullopt : plan_of_checkpoint(draft.directory);
  if (!trained) {
    draft.chat_template = own_chat_template(tokenizer);
    if (draft.chat_template) draft.system = "";
    return;
  }
  const plan::Stage& stage = stage_named(trained->plan, trained->stage);
  if (trained->plan.model.image_size != model.image_size) draft.image_size = trained->plan.model.image_size;
  if (!draft.image_frames && stage.data.replicate_image_frames > 1)
    draft.image_frames = stage.data.replicate_image_frames;
  draft.mode = stage.mode == usual ? "" : stage.mode;
  draft.chat_template = stage.data.chat_template;
  if (stage.data.system != plan::Mix{}.system) draft.system = stage.data.system;
}

// Fills in what the model and the data say, and writes the file.
Findings decide(const ParsedOptions& parsed, const std::string& file, RecipeDraft& draft) {
  name_fields(draft.train, draft);
  name_fields(draft.held_out, draft);
  plan::Plan plan = resolved(draft, parsed).plan;
  const ModelDescription model = budget::describe(plan); // throws where the parts do not go together
  const auto tokenizer = Tokenizer::from_file(fs::path(plan.model.tokenizer_folder()) / "tokenizer.json");
  read_settings(plan.model, tokenizer, draft);
  if (draft.chat_template)
    if (const auto problem = missing_answer_end(tokenizer, *draft.chat_template,
                                                end_tokens(tokenizer.folder(), model.decoder().eos_token_id)))
      log_warning("{}", *problem);
  plan = resolved(draft, parsed).plan;
  const auto registry = open_registry(parsed);
  const auto video = choose_video_decoder(*registry, plan.kernels["video"]);
  plan::Mix mix = plan.stages.front().data;
  const Findings seen = look_at_training(plan, mix, tokenizer, video ? &*video : nullptr, draft);
  if (seen.with_choice > 0)
    throw Error(ErrorKind::data, "the samples are multiple-choice questions, which are for evaluation")
        .advise("give them to --held-out, and to --data samples with an answer");
  draft.objective = seen.are_pairs()      ? "dpo"
                    : seen.are_to_embed() ? "contrastive"
                    : seen.are_judged()   ? "kto"
                                          : "next_token";
  if (seen.most_negatives > 1) draft.negatives = seen.most_negatives;
  require_trained_connector(draft, seen);
  if (seen.judged > 0 && !seen.are_judged())
    log_warning("{} of {} samples say whether their answer is a good one, and others do not: all answers are learnt",
                grouped(seen.judged), grouped(seen.usable));
  for (size_t i = 0; i < draft.train.size(); ++i) draft.train[i].samples = seen.samples[i];
  draft.batch = parsed.value("batch") ? draft.batch : std::min(draft.batch, draft.samples());
  set_limits(plan, seen, draft);
  if (!draft.held_out.empty()) {
    mix.sources = resolved(draft, parsed).plan.stages.front().evaluation.sets.front().data.sources;
    const Findings held_out = look_at(plan, mix, tokenizer, video ? &*video : nullptr, "the held-out data");
    for (size_t i = 0; i < draft.held_out.size(); ++i) draft.held_out[i].samples = held_out.samples[i];
    draft.max_new_tokens = held_out.short_answers.tokens();
    draft.measure = held_out.with_choice > 0  ? "choice"
                    : held_out.are_pairs()    ? "preference"
                    : held_out.are_to_embed() ? "retrieval"
                    : draft.max_new_tokens    ? "answer"
                                              : "loss";
  }
  draft.about = about(draft, seen, file);
  require_positions(resolved(draft, parsed));
  write_file_atomic(file, draft.lua());
  return seen;
}

} // namespace

int run_recipe_new(Arguments arguments) {
  const auto parsed = options_of_recipe_new().parse(arguments);
  if (!parsed) return 0;
  const std::string file = *parsed->value("FILE");
  RecipeDraft draft = draft_of(*parsed);
  const Findings seen = decide(*parsed, file, draft);
  if (parsed->flag("json"))
    fmt::print("{}", dump(Json{{"recipe", file},
                               {"samples", draft.samples()},
                               {"looked_at", seen.looked_at},
                               {"broken", seen.looked_at - seen.usable},
                               {"objective", draft.objective},
                               {"most_frames", seen.most_frames},
                               {"most_tokens", seen.most_tokens}}));
  else
    fmt::print("{}: {}, {}\n\n  fvlm-engine plan {} --budget   # the memory that it needs\n  fvlm-engine train {}\n",
               file, counted(draft.samples(), "sample"), kind_of(seen), shell_word(file), shell_word(file));
  return 0;
}

} // namespace fvlm::cli
