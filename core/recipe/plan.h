// Plan: the complete, immutable description of a run. Plain structs, independent of Lua and JSON. resolve() makes one
// from a recipe or a plan file; afterwards it is only read.
//
// The initializers below are the defaults of a recipe. The meaning, unit and range of each field are documented once,
// in core/recipe/schema/, from which recipes/REFERENCE.md is generated. A `derived` field is computed by resolve().
#pragma once
#include "recipe/box_form.h"
#include "recipe/connector_settings.h"
#include "recipe/curve.h"
#include "recipe/objective_term.h"
#include "recipe/portion.h"
#include "recipe/processor_overrides.h"

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

namespace fvlm::plan {

// A number per parameter group. A resolved Plan has one entry for each group that the stage trains.
using ByGroup = std::map<std::string, double>;

// A new tower, described in the recipe and initialized from the seed, instead of a Hugging Face folder with weights.
struct FreshVision {
  int64_t width = 0, layers = 0, heads = 0, patch_size = 14;
  std::optional<int64_t> mlp; // always set once resolved
};
struct Dinov2 : FreshVision {};
struct Clip : FreshVision {
  bool drop_class_token = false;
};
struct Siglip : FreshVision {};

// The encoder of LatentWire, which reads a text's bytes.
struct Bytes {
  int64_t max_bytes = 512, width = 256, layers = 6, heads = 8;
  std::optional<int64_t> mlp; // always set once resolved
};

enum class LlamaFamily { llama, qwen2, qwen3 };

const char* name_of(LlamaFamily family); // Hugging Face's model_type

struct Llama {
  std::string tokenizer;             // a folder with tokenizer.json, which determines the vocabulary size
  std::optional<LlamaFamily> family; // absent: llama
  int64_t width = 0, layers = 0, heads = 0;
  std::optional<int64_t> head_width;    // absent: width / heads
  std::optional<int64_t> kv_heads, mlp; // always set once resolved
  double rope_theta = 10000;
  std::optional<double> initializer_range; // of the matrices; absent: 0.02
  std::optional<double> embedding_range;   // of the token embedding; absent: that of the matrices
  bool tied_head = true;
  int64_t max_positions = 8192;
};

// All sizes follow from the depth.
struct GhostVis {
  std::string tokenizer; // as for Llama
  int64_t depth = 0;     // layers
  int64_t max_positions = 2048;

  int64_t width() const { return 64 * depth; }
  int64_t heads() const { return width() / 128; }
  int64_t kv_heads() const { return heads() > 1 ? heads() / 2 : 1; }
  int64_t mlp() const { return (width() * 27 / 10 + 63) / 64 * 64; }
};

using Vision = std::variant<std::string, Dinov2, Clip, Siglip, Bytes>; // a string is a Hugging Face folder
using Decoder = std::variant<std::string, Llama, GhostVis>;

// Low-rank adapters of some parts, whose own weights are then frozen.
struct Lora {
  std::vector<std::string> parts = {"decoder"}; // names of the encoder ("vision") and of decoders
  int64_t rank = 0;
  std::optional<double> alpha; // absent: 2 x the rank of the module
  double dropout = 0;
  std::map<std::string, int64_t> rank_pattern; // by name of modules: those that have another rank
  std::map<std::string, double> alpha_pattern; // the same of alpha
  std::vector<std::string> targets = {"q", "v"};
  std::optional<std::vector<std::string>> modules_to_save;
  bool dora = false;
};

struct Model : ProcessorOverrides {
  std::optional<std::string> directory; // a model directory that vision, decoder, connector and weights come from
  Vision vision;
  Decoder decoder;
  std::optional<std::vector<Decoder>> decoders; // further ones, which read the same frames: decoder2, decoder3, ...
  Connector connector = default_connector();
  int64_t image_size = 224;
  std::optional<std::vector<Lora>> adapters;
  size_t decoder_count() const { return 1 + (decoders ? decoders->size() : 0); }
  Model with_decoder(size_t index) const; // as a model of that decoder alone
  std::string tokenizer_folder() const;   // the folder of the decoder's tokenizer.json
  // The new vision tower; null: it is a folder's.
  const FreshVision* fresh_vision() const;
  FreshVision* fresh_vision() { return const_cast<FreshVision*>(std::as_const(*this).fresh_vision()); }
  // Of a new decoder; absent for a folder.
  std::optional<int64_t> decoder_layers() const, decoder_positions() const;
  // Additional parameter groups: name -> patterns of parameter names. Matched parameters leave "connector", "vision"
  // and "decoder".
  std::map<std::string, std::vector<std::string>> groups;
};

struct Source {
  std::string name;                // used for samples without a `source`
  std::vector<std::string> shards; // patterns of tars, JSON files, folders and so on, with images or videos
  std::vector<std::string> text;   // or patterns of text-only ones
  Curve weight;
  int64_t epochs = 0;                        // passes before the source is exhausted; 0: unlimited
  std::map<std::string, std::string> fields; // part of a sample -> key in the shard's JSON
  std::optional<std::string> root;           // of the paths in JSON files; absent: the folder of each file
  std::optional<double> held_out;            // share of the samples that evaluation sets read, and stages do not
  Portion::Side side = Portion::Side::rest;  // derived: held_out in the data of an evaluation set

  Portion portion() const { return held_out ? Portion(*held_out, side) : Portion(); }
  bool text_only() const { return !text.empty(); }
  const std::vector<std::string>& patterns() const { return text_only() ? text : shards; }
  std::vector<std::string>& patterns() { return text_only() ? text : shards; }
};

enum class Overlong { truncate, drop };

// How the documents of a text stream see each other.
enum class Documents { joined, isolated };

// What becomes of a sample that has a context, a question and answers.
struct QuestionForm {
  std::string source = "Context: {context}\nQuestion: {question}\n"; // that an encoder of bytes reads, or the decoder
  std::string prompt = "{source}"; // around the source where the decoder reads it as text; may have special tokens
  std::string anchor = "Answer: "; // behind the source or its rows
  std::string eos = "<|im_end|>";  // behind the answer
  std::string bos;                 // empty: none
  enum class Begin { first, after_prefix };
  Begin bos_place = Begin::first;
  int64_t max_answer_tokens = 32;
  std::optional<int64_t> max_source_tokens; // of a source that the decoder reads as text
  bool operator==(const QuestionForm&) const = default;
};

// What a further decoder reads otherwise than the mix says.
struct DecoderTexts {
  std::optional<std::string> system, chat_template, teacher_prompt;
  std::optional<QuestionForm> questions;
};

struct Mix {
  std::vector<Source> sources;
  std::optional<double> text_ratio; // fraction of text-only samples; if absent, the weights decide
  int64_t max_frames = 64;
  int64_t max_text_tokens = 1024;
  int64_t replicate_image_frames = 1;
  Overlong overlong = Overlong::truncate;
  std::string system = "You are a helpful AI assistant."; // empty: no system turn
  std::optional<std::string> chat_template;               // the name of one in the decoder's folder; absent: ChatML
  bool mask_history = false;                              // of a conversation the last answer alone is learnt
  std::optional<int64_t> negatives;                       // that are read of a retrieval sample, at most; absent: 1
  std::optional<BoxForm> boxes;                           // absent: as the decoder's family writes them
  std::map<std::string, std::string> prompts = default_prompts(); // source or "default" -> text of an empty user turn
  std::optional<std::string> teacher_prompt; // a teacher's first user turn with {field}s, or its QuestionForm::prompt
  std::optional<std::string> preprocessed;   // a folder written by `preprocess`
  std::optional<Documents> documents;        // the samples are one stream of text, cut into rows of max_text_tokens
  std::optional<QuestionForm> questions;     // absent: QuestionForm()
  std::optional<std::map<std::string, DecoderTexts>> decoders; // by the decoder's name: "decoder2"
  Mix for_decoder(size_t index) const;                         // as a mix for that decoder alone

  // The fraction of samples from each source at a point of the stage. The sum is 1.
  std::vector<double> shares(double progress) const;
  bool has_frames() const; // whether a source is not text-only

  static std::map<std::string, std::string> default_prompts();
};

enum class Moments { fp32, bf16 };
enum class Gradients { fp32, bf16 };

// Settings common to all optimizers.
struct OptimizerCommon {
  ByGroup lr;
  ByGroup weight_decay = {{"default", 0.01}};
  double clip = 1; // maximum global gradient norm; 0: no clipping
  Moments moments = Moments::fp32;
};

struct Adam {
  std::vector<double> betas = {0.9, 0.999};
  double eps = 1e-8;
};

struct AdamByGroup : Adam {
  struct Own { // absent values are those of all groups
    std::optional<std::vector<double>> betas;
    std::optional<double> eps;
  };
  std::optional<std::map<std::string, Own>> groups; // that have settings of their own
  Adam of(const std::string& group) const;
};

struct AdamW : OptimizerCommon, AdamByGroup {};

// Muon for the matrices inside the layers, AdamW for all other parameters (embeddings, head, vectors).
struct Muon : OptimizerCommon {
  struct Others : AdamByGroup {
    ByGroup lr;
  };
  // The momentum rises linearly from here to its own value over these steps.
  struct Warmup {
    double from = 0.85;
    int64_t steps = 300;
  };
  double momentum = 0.95;
  std::optional<Warmup> momentum_warmup;
  std::optional<std::vector<std::string>> groups; // whose matrices Muon updates; absent: all
  bool updates(const std::string& group) const;
  double momentum_at(int64_t step) const; // of the stage, from 0
  bool nesterov = true;
  double eps = 1e-7;
  Others others;
};

// An optimizer algorithm of a plugin, by name.
struct PluginOptimizer : OptimizerCommon {
  PluginOptimizer() { weight_decay.clear(); } // if absent, the algorithm's own default applies
  std::string algorithm;
  std::map<std::string, double> options; // hyperparameters of the algorithm
};

using Optimizer = std::variant<AdamW, Muon, PluginOptimizer>;

const OptimizerCommon& common(const Optimizer& optimizer);
OptimizerCommon& common(Optimizer& optimizer);

// Linear warm-up from 0 to each group's base rate, over this fraction of the stage's steps.
struct WarmUp {
  double warmup = 0;
};
struct Constant : WarmUp {};
struct Cosine : WarmUp {
  double to_share = 0.1; // final rate as a fraction of the base rate
};
struct Linear : WarmUp {
  double to_share = 0;
};
struct Converging : WarmUp {
  double to = 0; // the common final rate of all groups, approached along a cosine
};

// A Curve is the factor on the base rate; it has no separate warm-up.
using Schedule = std::variant<Constant, Cosine, Linear, Converging, Curve>;

double warmup(const Schedule& schedule);

// A step takes samples until one of the limits would be exceeded. With `samples` alone it takes exactly that many.
struct Batch {
  std::optional<int64_t> samples, tokens, frames;
};

// The fixed capacity of one pack, which is the micro-batch. Absent values are chosen from the data.
struct PackTokens {
  std::optional<int64_t> count;
  bool fill_memory = false; // training chooses the count when it starts: as many as memory holds
};

struct Packing {
  std::optional<int64_t> frames;
  PackTokens tokens;
  std::optional<int64_t> segments;
  int64_t window = 256; // upcoming samples that the packer may choose from
};

// Activation checkpointing of a tower: which layers recompute their activations in the backward pass.
struct Recompute {
  bool light = false;          // all layers, but only the outputs of norms, GELU and SwiGLU
  int64_t every = 0;           // 0: none, 1: all, k: layers 0, k, 2k, ...
  std::vector<int64_t> layers; // or exactly these, counted from 0
  bool covers(int64_t layer) const;
};

struct ActivationCheckpointing {
  Recompute vision, decoder;
};

enum class Measure { loss, choice, preference, answer, bits_per_byte, iou, retrieval };

const char* name_of(Measure measure); // "choice"

struct EvaluationSet {
  std::string name;
  Mix data;
  Measure measure = Measure::loss;
  std::vector<std::string> modes; // of the connector; once resolved, at least one
  int64_t samples = 0;            // 0: all
  bool entropy = false;
  std::optional<int64_t> max_new_tokens; // of a generated answer; absent: 128
  int64_t show = 0;                      // samples in the report, with the model's answer and its attention over frames

  bool generates() const { return measure == Measure::answer || measure == Measure::iou; }
};

struct Evaluation {
  int64_t every = 0; // steps; 0: only at the end of the stage
  std::vector<EvaluationSet> sets;
};

struct Control {
  int64_t every = 0; // steps
  LuaFunction run;
};

// What a `control` function may return.
struct StopStage {};
struct Save {};
struct ScaleRate {
  double factor = 1;
};
using Action = std::variant<StopStage, Save, ScaleRate>;

struct Stage {
  std::string name;
  std::string from; // once resolved: "model", an earlier stage's name, or the path of a checkpoint
  std::vector<std::string> freeze;
  Mix data;
  std::string mode; // of the connector, for training; always set once resolved
  std::vector<Term> objective;
  Optimizer optimizer;
  Schedule schedule;
  int64_t samples = 0; // 0: determined by `epochs`
  std::optional<int64_t>
      epochs; // passes over the data; samples are counted when the data is opened (train/stage_length.h)
  Batch batch;
  Packing packing;
  ActivationCheckpointing activation_checkpointing;
  bool quantization_aware = false;
  Evaluation evaluation;
  std::optional<Control> control;

  // derived: ceil(samples / batch.samples); absent where batches are limited by tokens or frames, or the samples are
  // not counted yet
  std::optional<int64_t> steps;
  std::optional<int64_t> warmup_steps; // derived: warmup * steps, rounded to the nearest

  // The first term that needs pairs of texts, and the first that needs judged answers, or null.
  const ObjectiveTerm* needs_pairs() const;
  const ObjectiveTerm* needs_judgements() const;
  // How answers are sampled from the model, in place of the data's; null: the stage learns from the data's.
  const Rollouts* rollouts() const;
  // The first term that embeds retrieval samples, or null.
  const ObjectiveTerm* embeds() const;
  // Texts of a sample: as its data have them, of retrieval samples `inputs_in_data`, and at most as it is packed.
  static constexpr int64_t inputs_in_data = -1;
  int64_t texts_in_data() const { return embeds() ? inputs_in_data : needs_pairs() && !needs_judgements() ? 2 : 1; }
  int64_t texts_per_sample() const;
  // Of these, how many see each frame.
  int64_t texts_per_frame() const { return embeds() ? 1 : texts_per_sample(); }
  // Whether any term reads the model that the stage starts from in this way.
  bool uses(ObjectiveTerm::Reference reference) const;
  // Whether any term has a teacher with a prompt of its own; whether one reads it in each step, so that its texts stand
  // in a pack too; and whether the hidden states of any teacher are cached.
  bool reads_teacher_prompt() const;
  bool packs_teacher_texts() const;
  bool caches_teacher() const;

  // The largest sample that the mix can produce, as it is packed: each text of a sample has rows for all of its frames,
  // but each input of a retrieval sample for its own.
  struct SampleSize {
    int64_t frames = 0, tokens = 0;
    int64_t longest = 0;       // rows of one text
    int64_t longest_video = 0; // frames of one text
  };
  SampleSize largest_sample(int64_t rows_per_frame) const;
};

enum class Precision { bf16, fp16, tf32, fp32, fp8 };

// Preferred backends for one kind of kernel, best first: names, with "auto" (best score) or "measure" (fastest) only
// last.
using BackendPreferences = std::vector<std::string>;

struct KernelKind {
  std::string_view name, doc;
  bool added_later = false; // than plans that keep their hash
};
const std::vector<KernelKind>& kernel_kinds();

struct Kernels {
  std::map<std::string, BackendPreferences, std::less<>> preferences = all_auto(); // one entry per kernel_kinds()
  const BackendPreferences& operator[](std::string_view kind) const;
  static std::map<std::string, BackendPreferences, std::less<>> all_auto();
};

// Optimizations that do not change results. Turning one off takes the plain path to the same result.
struct Speed {
  bool graphs = true;
  bool overlap_copies = true;
  bool coarse_in_tower = true;
  bool skip_last_patches = true;
  bool fold_layer_scale = true;
  bool loss_tokens_only = true;
  bool joint_weight_gradients = true;
  bool shared_preference_frames = true;
  bool shared_repeated_frames = true;
  bool text_without_tower = true;
};

struct Quarantine {
  int64_t count = 1000;
  double share = 0.01;
  // Whether both limits are exceeded; or, so that small data sets are covered, whether a tenth of at least 50 samples
  // (or `share`, if larger) is broken.
  bool exceeded_by(int64_t broken, int64_t read) const;
};

struct Loader {
  std::optional<int64_t> workers; // absent: one per core but one
  int64_t memory_mib = 1024;
  Quarantine quarantine;
};

struct Checkpoint {
  int64_t every = 1000; // steps; 0: only at the end of a stage
  int64_t keep_last = 3;
  int64_t keep_best = 1;
  std::optional<std::string> best_by; // an evaluation set; absent: the first of the stage
};

struct Guard {
  int64_t nonfinite_limit = 10;
  double spike_factor = 3; // 0: spikes are not detected
  bool rollback = false;
};

struct Quantization {
  std::string scheme = "int8"; // a plugin's kind "fvlm.quantizer/1:SCHEME"
  std::vector<std::string> skip = {"decoder.lm_head", "vision.*"};
  std::string head; // scheme of output heads; empty: they stay as they are, as training needs their numbers
};

struct Plan {
  std::string name;
  int64_t seed = 42;
  Precision precision = Precision::bf16;
  Gradients gradients = Gradients::fp32; // of parameters
  bool deterministic = false;
  Model model;
  Kernels kernels;
  Speed speed;
  Loader loader;
  Checkpoint checkpoint;
  Guard guard;
  std::optional<Quantization> quantization;
  int64_t log_every = 10; // steps
  std::vector<Stage> stages;
};

// "connector", "vision", "decoder", those of further decoders, then the recipe's additional groups.
std::vector<std::string> parameter_groups(const Model& model);

} // namespace fvlm::plan
