// GenerationBatch: answers many prompts at once. Each step is one pass of the decoder over the newest token of every
// answer and over rows of prompts, as many as a budget allows. Prompts join and leave between two steps. One prompt is
// a batch of one.
#pragma once
#include "device/runtime.h"
#include "grammar/token_constraint.h"
#include "infer/calculator.h"
#include "infer/decode_graphs.h"
#include "infer/draft_model.h"
#include "infer/sampling.h"
#include "infer/scheduler.h"
#include "infer/stop_rules.h"
#include "infer/token_masks.h"
#include "model/model.h"

#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <vector>

namespace fvlm::infer {

// Natural logarithms of probabilities, as the model has them before any sampling setting applies.
struct TokenLogprobs {
  double chosen = 0;                           // of the token itself
  std::vector<std::pair<int64_t, double>> top; // of the likeliest tokens, the likeliest first
};

struct GeneratedToken {
  int64_t id = 0;
  std::optional<TokenLogprobs> logprobs; // where the prompt asks for them
};

// Returns false to end the answer.
using TokenCallback = std::function<bool(const GeneratedToken& token)>;

// Called with each token of a prompt but the first, which nothing stands before.
using ScoreCallback = std::function<void(std::vector<GeneratedToken> tokens)>;

// Called with the last hidden state of a prompt's last row.
using EmbeddingCallback = std::function<void(std::vector<float> hidden)>;

struct Prompt {
  std::vector<int64_t> tokens; // placeholders where visual rows stand; without any, all of them stand before
  at::Tensor visual;           // [visual rows, decoder width and DeepStack's]; undefined: none
  int64_t max_tokens = 1;      // of the answer
  Sampling sampling;
  TokenCallback on_token; // called with each token of the answer but an end token; may be empty
  // Digests of the frames that `visual` was made of, each of equally many rows. Prompts that begin with the same frames
  // and tokens share what was computed for them; without digests, only what is before the first visual row.
  std::vector<std::string> visual_keys = {};
  std::vector<ImageGrid> grids = {};        // of the images whose cells the frames are: see model::Sample
  std::optional<int64_t> top_logprobs = {}; // of so many likeliest tokens besides the chosen one; nothing: none at all
  const Calculator* calculator = nullptr;   // outlives the batch; null: none, as with a constraint
  // What the answer's text may be: an end token follows where it is whole. Null: anything. Of this answer alone.
  std::shared_ptr<grammar::TokenConstraint> constraint = {};
  StopRules stop = {}; // with a constraint neither ignore_eos nor min_tokens
  // Called once, before the first token of the answer, with as many of the likeliest tokens as top_logprobs says.
  // Empty: prompts are not scored. Of a prompt without visual rows.
  ScoreCallback on_scores = {};
  EmbeddingCallback on_embedding = {}; // called in place of an answer, which then has no token; empty: there is one
  size_t adapter = 0;                  // 0: the batch's model; else of BatchOptions::adapted, counted from 1
};

struct GeneratedAnswer {
  int64_t number = 0;                  // of its prompt, as add() returned it
  std::vector<int64_t> tokens;         // with the end token, if there is one
  std::vector<TokenLogprobs> logprobs; // of each token, where the prompt asks for them
  bool ended = false;                  // by an end token
  int64_t shared_rows = 0;             // of the prompt, that another prompt's pages had
  double seconds = 0;                  // since the first pass over its prompt began
  bool lacks_memory = false;           // it has no token, since there is no memory for its rows of keys and values
};

struct BatchOptions {
  // Rows of keys and values that all answers share, unless one alone needs more. They take 0.19 GB for a decoder
  // of 135M parameters (SmolLM2) in bfloat16, 1.6 GB for one of 1.7B. Memory is taken for as many as the prompts need
  // that wait at the first step, and for no fewer than `reserved_rows`.
  int64_t cache_rows = 8192;
  int64_t reserved_rows = 0;
  // Answers that are generated at once where the decoder carries states: each has room for its own, as much for a long
  // text as for a short one. Memory is taken as for rows, and for no fewer answers than `reserved_sequences`.
  int64_t max_sequences = 64;
  int64_t reserved_sequences = 0;
  int64_t page_rows = 16; // the smaller, the more is shared between prompts that begin alike
  // Rows of prompts in one pass; 0: 256 on a CPU, on a GPU 2048, or 8192 where no answer waits for its next token.
  int64_t prefill_rows = 0;
  // Speculative decoding: a pass also reads so many tokens that are supposed to follow, since they did so earlier in
  // the text (ngram.h), or since a second model says so (draft_model.h), which outlives the batch. A token is drawn
  // behind each as ever, and drafts are right as long as they are what was drawn, so that answers are the same with and
  // without them.
  int64_t draft_tokens = 0;
  const model::Model* draft_model = nullptr;
  // The model with adapters, each with others, for prompts that say so. They outlive the batch. Prompts of those that
  // `mixed` has, too, and of the model as it is are answered in one pass (MixedAdapter); others take turns with these.
  struct Adapted {
    const model::Model* model;
    bool is_mixed = false;
  };
  std::vector<Adapted> adapted = {};
  const model::Model* mixed = nullptr;
  bool captures = true; // passes as CUDA graphs
  // A prompt joins where there is room for its rows, and not for its whole answer; there is more memory once an answer
  // needs it. Where there is none, a prompt ends with `lacks_memory`, an answer with the tokens that it has, and others
  // go on. Else there is memory for whole answers when a batch begins, or an error is thrown.
  bool outlives_long_prompts = false;
};

class GenerationBatch {
 public:
  // An answer ends after any of `end_tokens`. The model and the operations outlive the batch. Throws Error(usage) where
  // there are to be drafts and require_models_for_drafts() does.
  GenerationBatch(const model::Model& model, model::Operations& ops, std::vector<int64_t> end_tokens,
                  const BatchOptions& options = {});

  // Queues a prompt of at least one row, and returns its number: 0 for the first. Prompts join in this order, as soon
  // as there are pages for their rows. Throws Error(usage) for a sampling and stop rules that make no sense.
  int64_t add(Prompt prompt);
  // Forgets a prompt and its answer, wherever it is, and gives its pages back. False: its answer is over.
  bool cancel(int64_t number);
  // No later prompt shares rows with those so far. To be called when the weights have changed, with no prompt in
  // flight.
  void clear_prefix_cache();
  // One pass: a token for every answer whose prompt has been read. On a GPU the tokens may be those of the pass before,
  // while the device computes the next one. Returns false, and does nothing, if there is nothing to answer. After an
  // exception the batch cannot be used any more.
  bool step();
  // The answers that ended since the last call.
  std::vector<GeneratedAnswer> take_finished();
  // Steps until all answers have ended. Returns those that were not taken, in the order of their numbers.
  std::vector<GeneratedAnswer> finish();

  SchedulerCounts counts() const { return scheduler_.counts(); }
  int64_t cache_bytes() const { return pages_.bytes(); } // of keys, values and states
  // Of the draft model's pages. Nothing where there is none.
  std::optional<SchedulerCounts> draft_model_counts() const;
  struct DraftCounts {
    int64_t proposed = 0, accepted = 0; // tokens
  };
  DraftCounts draft_counts() const { return drafts_; }
  int64_t masks_copied() const { return masks_.copied(); } // of constraints
  struct StepTimes {
    int64_t steps = 0;
    double seconds = 0, device_seconds = 0; // the second: in which the host waited for the device
  };
  // Of the steps that read prompts or take what such a pass computed, and of those that only continue answers.
  const StepTimes& reading_times() const { return reading_times_; }
  const StepTimes& decoding_times() const { return decoding_times_; }

 private:
  struct Answer {
    Prompt prompt; // its tokens are the scheduler's
    Sampler sampler;
    GeneratedAnswer answer;
    double begin = 0;                        // of the first pass
    std::deque<int64_t> given = {};          // tokens that follow, whatever the model says
    std::vector<GeneratedToken> scores = {}; // of the prompt's tokens so far
    bool may_end() const { return std::ssize(answer.tokens) >= prompt.stop.min_tokens; }
    bool may_continue_with_any() const { return !prompt.constraint && may_end(); }
    // Whether the next token is the likeliest one of the logits as they are.
    bool takes_likeliest() const { return sampler.is_argmax() && may_continue_with_any(); }
    bool reads_logits() const { return !takes_likeliest() || prompt.top_logprobs; }
  };
  // A pass whose tokens the device may still be computing.
  struct PassInFlight {
    Scheduler::Pass pass;
    DecodeGraphs::Output output;
    at::Tensor likeliest;                 // on the host, when it is ready
    std::shared_ptr<device::Event> ready; // null: it is
    double begin;
    bool reads_prompts;
  };
  // What step() does. Returns the same.
  bool run_step();
  // Returns whether a prompt ended, for which there is no memory.
  bool reserve();
  void make_pages(int64_t pages, int64_t slots);
  // Those of the model as it is and of adapters that can be mixed are in the first one (Scheduler::Prompt).
  int64_t group_of(size_t adapter) const;
  const model::Model& model_with(size_t adapter) const {
    return adapter == 0 ? model_ : *options_.adapted[adapter - 1].model;
  }
  const model::Model& model_of(const Scheduler::Pass& pass) const;
  DecodeGraphs& graphs_of(const Scheduler::Pass& pass);
  at::Tensor embed(const Scheduler::Pass& pass, const model::StagedRows& rows) const;
  // The outputs of a pass, in the order of its parts.
  DecodeGraphs::Output compute(const Scheduler::Pass& pass, const DeviceTokens& tokens);
  PassInFlight launch(Scheduler::Pass pass, const DeviceTokens& tokens = {});
  // Whether the pass behind this one can be launched before the host knows this one's tokens: some answer goes on, and
  // each continues with the likeliest token, unless that ends it. Such an answer is computed once more in vain; one
  // that has as many tokens as it may have is not.
  bool can_run_ahead(const Scheduler::Pass& pass) const;
  static bool ends_with_next_token(const Answer& answer);
  PassInFlight launch_behind(const PassInFlight& last);
  // Waits for a pass and appends its tokens to the answers.
  void take(const PassInFlight& last);
  // Whether each row is the newest token of a sequence that has an answer.
  bool only_decodes(const Scheduler::Pass& pass) const;
  bool wants_logits(const Scheduler::Pass& pass) const;
  void propose_drafts();
  void forget(int64_t number);
  // The tokens that a pass is drawn to continue answers with, by row; nothing where they are the likeliest ones, or
  // depend on whether drafts are right.
  std::map<int64_t, int64_t> draw(const PassInFlight& last);
  // Tokens that end an answer by these rules.
  std::vector<int64_t> ends_of(const StopRules& stop) const;
  void check(const StopRules& stop, const Sampling& sampling) const;
  // Makes the tokens that the answer may not continue with impossible.
  void hide_tokens_of(const Answer& answer, const at::Tensor& logits);
  // Of the tokens behind the first rows of a part; `logits`: of these rows.
  void score(Answer& answer, const Scheduler::Part& part, const at::Tensor& logits) const;
  GeneratedToken pick(Answer& answer, const at::Tensor& logits, int64_t likeliest, std::optional<int64_t> drawn) const;
  // Returns whether the answer is over.
  bool append(Answer& answer, GeneratedToken token);

  const model::Model& model_;
  model::Operations& ops_;
  std::vector<int64_t> end_tokens_;
  BatchOptions options_;
  int64_t parameters_; // of the model
  int64_t prompts_ = 0;
  Scheduler scheduler_;
  model::KvPages pages_;
  std::deque<DecodeGraphs> graphs_;          // of the model, and with each adapter
  std::optional<DecodeGraphs> mixed_graphs_; // with several at once
  TokenMasks masks_;
  std::optional<PassInFlight> in_flight_;
  std::unique_ptr<DraftModel> draft_model_;
  DraftCounts drafts_;
  StepTimes reading_times_, decoding_times_;
  bool step_reads_ = false;           // the current one
  double step_waits_ = 0;             // for the device
  std::map<int64_t, Answer> answers_; // by number; those that are not over
  std::vector<GeneratedAnswer> finished_;
};

} // namespace fvlm::infer
