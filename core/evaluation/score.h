// Scores of a set's samples: a model's loss on each of their texts.
#pragma once
#include "dist/ranks.h"
#include "evaluation/answerer.h"
#include "evaluation/answers.h"
#include "evaluation/sample_set.h"
#include "feed/model_samples.h"
#include "model/model.h"

#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace fvlm::evaluation {

struct TextScore {
  double loss = 0; // sum over its labels, which are its answer's tokens
  int64_t labels = 0;
  int64_t bytes = 0;       // that its labels stand for, where the set measures bits per byte
  int64_t first_rank = -1; // how many tokens are likelier than the first label's; -1: not measured
  double mean() const { return loss / static_cast<double>(labels); }
};

// What of a retrieval sample is embedded.
struct EmbeddedInput {
  uint64_t content = 0;      // inputs of equal content have equal ones, see HostPack::content_of()
  std::vector<float> vector; // of length 1
};

struct SampleScore {
  int64_t position = 0; // in the set
  std::string key, source;
  std::vector<TextScore> texts; // each choice; chosen and rejected; or the correct one only
  size_t correct = 0;           // index into texts
  struct Generated {
    std::string answer;
    Answers expected;
  };
  std::optional<Generated> generated; // where the set measures answers
  std::vector<EmbeddedInput> inputs;  // where it measures retrieval: the query, its positive, its negatives
};

struct Scores {
  size_t decoder = 0;               // whose scores these are
  std::vector<SampleScore> samples; // in the order of their positions
  // Entropy of the attention over a frame: mean over frames, layers and heads, in nats; if the set requests it.
  std::optional<double> attention_entropy;
  // Of a sample on average, where an encoder reads bytes: tokens of the prompt, decoder rows, bytes of the text and,
  // where the mode sends them, of its latents.
  std::vector<std::pair<std::string, double>> sizes;
};

// What follows is of one of the decoders that read the set. `model`: all of it.
// One pack of a set, all texts of a sample in one forward pass that shares its frames.
struct ScoredPack {
  std::vector<SampleScore> scores;
  std::vector<model::Sample> samples; // the model's inputs; their frames lie in the loaded pack's memory
  std::vector<at::Tensor> visual;     // rows of the decoder of each sample's frames; undefined: it has none
  // On request, see model::VisualTokens: [frames, layers, heads, tokens of a frame], [frames, queries, tokens of a
  // frame].
  at::Tensor attention, query_attention;
};
ScoredPack score_pack(const SampleSet& set, const HostPack& loaded, const model::Model& model, ops::Operations& ops,
                      const std::string& mode, model::EncodeOutputs outputs, size_t decoder);
// A pack of these samples that the model reads in a forward pass, of few sizes.
struct ReadSamples {
  model::Pack pack;
  model::VisualTokens seen;
  ops::Value hidden;
};
// As the model's speed says.
feed::Repeats repeats_of(const model::Model& model);

ReadSamples read_samples(const SampleSet& set, const std::vector<model::Sample>& samples, const model::Model& model,
                         ops::Operations& ops, const std::string& mode, model::EncodeOutputs outputs);
// What the model generates for each sample of a pack behind its visual tokens, of at most `tokens` tokens.
std::vector<std::string> generate_answers(const HostPack& loaded, const ScoredPack& scored_pack, Answerer& answerer,
                                          int64_t tokens);

// Scores every sample, pack by pack, without gradients. The result does not depend on how many samples share a pack.
// The model and its arenas do not change. Where a plugin refuses a call, the set begins anew with the next one. With
// several ranks each scores a share of the packs, and all of them have the scores of all; every rank calls it.
using ScoreProgress = std::function<void(int64_t done, int64_t all)>;
Scores score(const SampleSet& set, const model::Model& model, ops::Operations& ops, const std::string& mode,
             const ScoreProgress& progress = {}, size_t decoder = 0, const dist::Ranks* ranks = nullptr);

} // namespace fvlm::evaluation
