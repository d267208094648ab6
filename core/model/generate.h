// Answers to the prompts of a batch: greedy, in the autoregressive mode, sample by sample.
#pragma once
#include "model/execution.h"
#include "model/weights/model_directory.h"
#include "plugin/registry.h"

#include <filesystem>
#include <functional>
#include <vector>

namespace fvlm::model {

struct GenerateRequest {
  std::filesystem::path model, batch; // each text of the batch is a prompt
  Execution execution;
  int64_t limit = 32;       // new tokens at most, and no more than the decoder has positions for
  bool ignore_ends = false; // go on behind tokens that end an answer
};

struct Answer {
  int64_t frames = 0, prompt = 0; // how many there were
  std::vector<int64_t> ids;       // new ones, the one that ended it included
  bool ended = false;             // by such a token
  double seconds = 0;             // frames and prompt included
};

// The tokens after which nothing follows: `eos_token_id` of the decoder's generation_config.json, or else of its
// config.json. Throws Error(data).
std::vector<int64_t> end_tokens(const ModelDescription& model);

// Hands over each answer as it is made, in the batch's order. Throws Error(data) for a batch that makes no sense.
void generate(const GenerateRequest& request, Registry& registry, const std::function<void(const Answer&)>& take);

} // namespace fvlm::model
