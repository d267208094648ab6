// Plan: all that a run will do, decided before it starts. Plain structs without Lua and without JSON. resolve() makes
// one from a recipe or from a plan file; everything after that reads it and nothing changes it.
//
// The initialisers below are the defaults of a recipe. What each field means to an author, its unit and its range stand
// once, in core/recipe/schema/, from where recipes/REFERENCE.md is made. A `derived` field is computed by resolve().
#pragma once
#include "recipe/objective_term.h"

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

namespace fvlm::plan {

// A value over a stage's progress: 0 at its first sample, 1 at its last. Evenly spaced points, linear in between; one
// point is a constant. A Lua function becomes one of `sampled` points.
struct Curve {
  static constexpr int sampled = 257;
  std::vector<double> points = {1.0};
  double at(double progress) const;
};

// A number for each parameter group. In a resolved Plan: one entry for each group that the stage trains.
using ByGroup = std::map<std::string, double>;

// A tower described in the recipe and initialised from the seed, in place of a Hugging Face folder with weights.
struct Dinov2 {
  int64_t width = 0, layers = 0, heads = 0, patch_size = 14;
  std::optional<int64_t> mlp; // resolved: always there
};

struct Llama {
  std::string tokenizer; // a folder with tokenizer.json; the vocabulary has its size
  int64_t width = 0, layers = 0, heads = 0;
  std::optional<int64_t> kv_heads, mlp; // resolved: always there
  double rope_theta = 10000;
  bool tied_head = true;
  int64_t max_positions = 8192;
};

using Vision = std::variant<std::string, Dinov2>; // the string: a Hugging Face folder
using Decoder = std::variant<std::string, Llama>;

enum class Attend { deep, shallow };

struct Connector {
  int64_t query_dim = 384;
  double visual_scale = 0.14;
  Attend attend = Attend::deep;
};

struct Model {
  Vision vision;
  Decoder decoder;
  Connector connector;
  int64_t image_size = 224;
  std::string tokenizer_folder() const; // of the decoder; holds tokenizer.json
  // Groups besides "connector", "vision" and "decoder": name -> patterns of parameter names, taken out of those three.
  std::map<std::string, std::vector<std::string>> groups;
};

struct Source {
  std::string name;                // of samples that name no source of their own
  std::vector<std::string> shards; // patterns of tar files with images or videos; or
  std::vector<std::string> text;   // patterns of tar files with text alone
  Curve weight;
  int64_t epochs = 0;                        // passes before the source is spent; 0: endless
  std::map<std::string, std::string> fields; // the engine's name of a sample's part -> the shard's key

  bool text_only() const { return !text.empty(); }
  const std::vector<std::string>& patterns() const { return text_only() ? text : shards; }
  std::vector<std::string>& patterns() { return text_only() ? text : shards; }
};

enum class Overlong { truncate, drop };

struct Mix {
  std::vector<Source> sources;
  std::optional<double> text_ratio; // share of samples from text sources; none: by weight alone
  int64_t max_frames = 64;
  int64_t max_text_tokens = 1024;
  int64_t replicate_image_frames = 1;
  Overlong overlong = Overlong::truncate;
  std::string system = "You are a helpful AI assistant.";         // empty: no system turn
  std::map<std::string, std::string> prompts = default_prompts(); // source -> text of an empty user turn; "default"
  std::optional<std::string> preprocessed;                        // a folder written by `preprocess`

  // What share of the samples each source gives at a moment of the stage; sums to 1.
  std::vector<double> shares(double progress) const;
  bool has_frames() const; // a source of it may

  static std::map<std::string, std::string> default_prompts();
};

enum class Moments { fp32, bf16 };
enum class Gradients { fp32, bf16 };

// What every optimizer has.
struct OptimizerCommon {
  ByGroup lr;
  ByGroup weight_decay = {{"default", 0.01}};
  double clip = 1; // of the global gradient norm; 0: none
  Moments moments = Moments::fp32;
};

struct AdamW : OptimizerCommon {
  std::vector<double> betas = {0.9, 0.999};
  double eps = 1e-8;
};

// Muon for the matrices inside the layers, AdamW for all else (embeddings, head, vectors).
struct Muon : OptimizerCommon {
  struct Others {
    ByGroup lr;
    std::vector<double> betas = {0.9, 0.999};
    double eps = 1e-8;
  };
  double momentum = 0.95;
  bool nesterov = true;
  double eps = 1e-7;
  Others others;
};

// An algorithm of a plugin, by its name.
struct PluginOptimizer : OptimizerCommon {
  PluginOptimizer() { weight_decay.clear(); } // none in the recipe: the algorithm's own default
  std::string algorithm;
  std::map<std::string, double> options; // its own hyperparameters
};

using Optimizer = std::variant<AdamW, Muon, PluginOptimizer>;

const OptimizerCommon& common(const Optimizer& optimizer);
OptimizerCommon& common(Optimizer& optimizer);

// Warm-up is linear from 0 to each group's base rate, over this share of the stage's steps.
struct WarmUp {
  double warmup = 0;
};
struct Constant : WarmUp {};
struct Cosine : WarmUp {
  double to_share = 0.1; // of the base rate, at the end
};
struct Linear : WarmUp {
  double to_share = 0;
};
struct Converging : WarmUp {
  double to = 0; // the rate at which every group ends, up or down along a cosine
};

// A Curve multiplies the base rate and has no other warm-up than its own shape.
using Schedule = std::variant<Constant, Cosine, Linear, Converging, Curve>;

double warmup(const Schedule& schedule);

// A step takes samples until one of the limits would be passed. Samples alone: exactly so many.
struct Batch {
  std::optional<int64_t> samples, tokens, frames;
};

// The fixed capacity of one pack, which is also the micro-batch. None: chosen from the data and the free memory.
struct Packing {
  std::optional<int64_t> frames, tokens, segments;
  int64_t window = 256; // samples looked ahead by the packer
};

// Which layers of a tower recompute their activations in the backward pass.
struct Recompute {
  bool light = false;          // no whole layers, but what norms, GELU and SwiGLU made, in all of them
  int64_t every = 0;           // 0: none, 1: all, k: layers 0, k, 2k, ...
  std::vector<int64_t> layers; // or these, counted from 0
  bool covers(int64_t layer) const;
};

struct ActivationCheckpointing {
  Recompute vision, decoder;
};

enum class Mode { coarse_fine, refined, coarse_only, autoregressive };
enum class Measure { loss, choice, preference };

struct EvaluationSet {
  std::string name;
  Mix data;
  Measure measure = Measure::loss;
  std::vector<Mode> modes = {Mode::coarse_fine};
  int64_t samples = 0; // 0: all
  bool entropy = false;
  int64_t show = 0; // samples that the report shows with the model's answer and where it looked
};

struct Evaluation {
  int64_t every = 0; // steps; 0: only at the end of the stage
  std::vector<EvaluationSet> sets;
};

// A function of the recipe, callable through the Sandbox that ran it.
struct LuaFunction {
  int64_t index = -1;  // FunctionId::index
  std::string defined; // "recipes/mine.lua:40"
  std::string code;    // SHA-256 over the recipe's Lua files: another text is another Plan
};

struct Control {
  int64_t every = 0; // steps
  LuaFunction run;
};

// What a `control` function may answer.
struct StopStage {};
struct Save {};
struct ScaleRate {
  double factor = 1;
};
using Action = std::variant<StopStage, Save, ScaleRate>;

struct Stage {
  std::string name;
  std::string from; // resolved: "model", an earlier stage's name, or the path of a checkpoint
  std::vector<std::string> freeze;
  Mix data;
  Mode mode = Mode::coarse_fine; // or refined: how frames are read while it trains
  std::vector<Term> objective;
  Optimizer optimizer;
  Schedule schedule;
  int64_t samples = 0;           // 0: `epochs` alone says how many
  std::optional<int64_t> epochs; // passes over the data, counted when they are opened: train/stage_length.h
  Batch batch;
  Packing packing;
  ActivationCheckpointing activation_checkpointing;
  bool quantization_aware = false;
  Evaluation evaluation;
  std::optional<Control> control;

  // derived: ceil(samples / batch.samples); none where budgets make batches, or nobody has counted the samples yet
  std::optional<int64_t> steps;
  std::optional<int64_t> warmup_steps; // derived: warmup * steps, rounded to the nearest

  // The first term that needs pairs of texts, or null.
  const ObjectiveTerm* needs_pairs() const;
  int64_t texts() const { return needs_pairs() ? 2 : 1; } // of a sample
  // Whether any term reads the model that the stage starts from in this way.
  bool uses(ObjectiveTerm::Reference reference) const;

  // What the mix lets through at most, in one pack: each text of a sample is read behind all its frames.
  struct SampleSize {
    int64_t frames = 0, tokens = 0;
  };
  SampleSize largest_sample() const;
};

enum class Precision { bf16, fp16, tf32, fp32 };

// Backends wanted for one kind of kernel, best first: names, or "auto" (best score) or "measure" (fastest) at the end.
using WishList = std::vector<std::string>;

struct KernelKind {
  std::string_view name, doc;
};
const std::vector<KernelKind>& kernel_kinds();

struct Kernels {
  std::map<std::string, WishList, std::less<>> wishes = all_auto(); // one entry for each kernel_kinds()
  const WishList& operator[](std::string_view kind) const;
  static std::map<std::string, WishList, std::less<>> all_auto();
};

// Work that need not be done, or not one after the other. Each off-switch takes the plain path to the same result.
struct Speed {
  bool graphs = true;
  bool overlap_copies = true;
  bool coarse_in_tower = true;
  bool skip_last_patches = true;
  bool fold_layer_scale = true;
  bool loss_tokens_only = true;
  bool joint_weight_gradients = true;
  bool shared_preference_frames = true;
  bool text_without_tower = true;
};

struct Quarantine {
  int64_t count = 1000;
  double share = 0.01;
  // Both limits; or, so that no set is too small for them, a tenth of those read (the share, where that is larger),
  // from 50 on.
  bool exceeded_by(int64_t broken, int64_t read) const;
};

struct Loader {
  std::optional<int64_t> workers; // none: one for each core but one
  int64_t memory_mib = 1024;
  Quarantine quarantine;
};

struct Checkpoint {
  int64_t every = 1000; // steps; 0: only at the end of a stage
  int64_t keep_last = 3;
  int64_t keep_best = 1;
  std::optional<std::string> best_by; // an evaluation set; none: the first of the stage
};

struct Guard {
  int64_t nonfinite_limit = 10;
  double spike_factor = 3; // 0: spikes are not looked for
  bool rollback = false;
};

struct Quantization {
  std::string scheme = "int8"; // a plugin's kind "fvlm.quantizer/1:SCHEME"
  std::vector<std::string> skip = {"decoder.lm_head", "vision.*"};
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

// "connector", "vision", "decoder", then the recipe's own.
std::vector<std::string> parameter_groups(const Model& model);

} // namespace fvlm::plan
