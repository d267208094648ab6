// Answers of a model directory: frames are encoded as in use, then a GenerationBatch answers the prompts behind them.
#pragma once
#include "base/error.h"
#include "infer/frame_graphs.h"
#include "infer/generation_batch.h"
#include "model/execution.h"
#include "model/weights/mixed_adapter.h"
#include "plugin/registry.h"

#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

namespace fvlm::infer {

struct GenerateOptions {
  int64_t limit = 32;              // new tokens at most, and no more than the decoder has positions for
  bool ignore_eos = false;         // go on behind tokens that end an answer
  std::vector<int64_t> end_tokens; // that end an answer besides the model's own
  Sampling sampling;
  std::optional<int64_t> top_logprobs; // see Prompt
  int64_t draft_tokens = 0;            // see BatchOptions; of the draft model, if the generator has one
  // What answers may be, of which tokens; null: anything.
  std::shared_ptr<const grammar::Grammar> form = {};
  std::shared_ptr<const grammar::TokenTable> tokens = {};
  grammar::Preface preface = {}; // what may stand before a form
};

struct Answer {
  int64_t frames = 0, prompt = 0; // how many there were; of the prompt, tokens without placeholders
  std::vector<int64_t> ids;       // new ones, the one that ended it included
  bool ended = false;             // by such a token
  double seconds = 0;             // of its pass, and of encoding its frames and those that are encoded with them
};

// Of a prompt that leaves no position for an answer.
class PromptTooLong final : public Error {
 public:
  using Error::Error;
};

// A model that is loaded once and asked as often as wanted.
class Generator {
 public:
  // Throws Error for a directory that is no model, or an execution that this machine does not have.
  Generator(const std::filesystem::path& model, const model::Execution& execution, Registry& registry);

  // Loads a second model, in the same types on the same device, that proposes tokens: see BatchOptions. Its tokens
  // have to mean the same. Throws Error for a directory that is no model.
  void use_draft_model(const std::filesystem::path& model, const model::Execution& execution);

  // Adds adapters in a folder to the model, which answers with them from here on. Throws Error(data) for a folder that
  // has none for this model.
  void use_adapter(const std::filesystem::path& folder);
  // The same for prompts that name them alone (Prompt::adapter), by the number that is returned: 1 for the first. All
  // weights that the adapters leave as they are have the model's memory. To be called before make_batch().
  size_t add_adapter(const std::filesystem::path& folder);
  // What these take besides.
  uint64_t adapter_bytes(size_t adapter) const { return adapted_.at(adapter - 1).bytes; }
  size_t adapters() const { return adapted_.size(); }
  // The frames of prompts with different adapters may be encoded together where this is the same.
  size_t encoder_of(size_t adapter) const { return adapter > 0 && adapted_[adapter - 1].changes_frames ? adapter : 0; }

  // Throws Error(usage) where there are to be drafts and the models cannot take them back.
  void check_drafts(int64_t draft_tokens) const;

  const model::ModelConfig& config() const { return model_->config(); }
  bool carries_state() const { return model_->decoder().carries_state(); }
  // The only text of a sample is its prompt. Throws Error(data) for an empty prompt, placeholders that are not those of
  // the frames, and where frames and prompt leave no position of the decoder's. Returns the rows that they take.
  int64_t require_room(const model::Sample& sample) const;
  // The rows of the sample's frames take the places of the prompt's placeholders, or stand before it. Throws
  // Error(data) where require_room() does, Error(usage) for options that make no sense.
  Answer answer(const model::Sample& sample, const GenerateOptions& options, const TokenCallback& on_token = {});
  // The same for several samples together, with another sequence of draws for each. `take` gets them in the order of
  // the samples.
  using TakeAnswer = std::function<void(const Answer&)>;
  void answers(const std::vector<model::Sample>& samples, const GenerateOptions& options, const TakeAnswer& take,
               const TokenCallback& on_token = {});

  // For prompts that come over time: a batch to add them to, which ends answers after the model's end tokens and has
  // the generator's draft model; and the prompts of samples with one text each, whose frames are encoded together. Such
  // a prompt has as many tokens of an answer as there are positions left, and neither sampling nor keys. Both throw as
  // answer() does.
  GenerationBatch make_batch(const BatchOptions& options);
  // `attention`, if not null, receives the attention maps [frames, layers, heads, tokens of a frame], if there are
  // frames. `encoder`: see encoder_of().
  std::vector<Prompt> encode_prompts(std::span<const model::Sample> samples, at::Tensor* attention = nullptr,
                                     size_t encoder = 0);
  // On a GPU, makes everything ready that single frames of so many pixels a side are encoded with.
  void prepare_frames(int64_t image_size);
  bool is_on_gpu() const { return ops_.options().device.is_cuda(); }
  bool has_attention() const { return model_->connector().has_attention(); }

 private:
  // So many frames of these samples may be encoded together; a repeated one is encoded once.
  int64_t frames_at_once(std::span<const model::Sample> samples) const;
  // The visual tokens of each sample's frames, and on request the attention maps of all frames.
  std::vector<at::Tensor> encode(std::span<const model::Sample> samples, at::Tensor* attention = nullptr,
                                 size_t encoder = 0);

  // The model with adapters.
  struct Adapted {
    std::unique_ptr<AttachedAdapter> can_be_mixed; // with others in one pass; null: it cannot
    std::unique_ptr<model::Model> model;
    std::unique_ptr<FrameGraphs> frame_graphs; // null: without a GPU, or where frames are encoded without adapters
    bool changes_frames = false;
    uint64_t bytes = 0;
  };
  Adapted load_adapter(const std::filesystem::path& folder);
  // The model with all adapters that can be mixed, of which passes have rows; null where there are none.
  std::unique_ptr<model::Model> load_mixed() const;

  std::filesystem::path folder_;
  std::optional<AdapterReader> reader_; // of the model, since there was an adapter
  model::ArenaOptions arena_;
  model::Operations ops_;
  std::vector<int64_t> ends_;
  std::unique_ptr<model::Model> model_, draft_model_; // the second may be null
  std::unique_ptr<const Calculator> calculator_;      // null: the tokenizer has no tokens for one
  std::unique_ptr<FrameGraphs> frame_graphs_;         // null: without a GPU
  std::vector<Adapted> adapted_;
  std::unique_ptr<model::Model> mixed_; // with several of them at once; null: none that can be mixed
};

// The prompts of a batch file, each text being one. Throws Error(data) for a batch that makes no sense.
void answer_batch(Generator& answerer, const std::filesystem::path& batch, const GenerateOptions& options,
                  const Generator::TakeAnswer& take);

} // namespace fvlm::infer
