// Rollouts: the model's own answers to the prompts of a pack, drawn with the weights of that step, and how much better
// each is than the others to its prompt. They take the places that RolloutPrompts reserved for them.
#pragma once
#include "data/stream/host_pack.h"
#include "data/tokenizer.h"
#include "evaluation/answerer.h"
#include "model/model.h"
#include "recipe/plan.h"
#include "report/record_file.h"
#include "train/rewards.h"

#include <optional>
#include <string>
#include <vector>

namespace fvlm::train {

struct RolloutsRequest {
  const plan::Plan& plan;
  const plan::Stage& stage; // with rollouts
  const Tokenizer& tokenizer;
  const model::Model& model; // that is trained
  ops::Operations& operations;
  model::Capacity most; // of a pack
  std::shared_ptr<recipe::Sandbox> lua;
  std::filesystem::path shown; // the file that answers are written to; empty: none
  int64_t steps_taken = 0;     // whose answers stay in that file
};

class Rollouts {
 public:
  // What the request refers to outlives it. Throws Error(recipe) as Rewards does.
  explicit Rollouts(const RolloutsRequest& request);

  // Begins a step, or begins it anew. `written`: its answers are to be written down.
  void begin_step(int64_t step, bool written);
  // Answers every prompt of the pack, one of so many parts of a whole. A prompt's answers depend on the weights, the
  // plan's seed, its position in the stage, and apart from rounding on nothing else.
  void answer(HostPack& pack, int64_t parts);
  void end_step();
  // Pages and CUDA graphs of generation, which the next pack makes anew.
  void release_memory() { answerer_.reset(); }

 private:
  std::vector<infer::GeneratedAnswer> generate(const HostPack& pack, int64_t parts);
  std::vector<at::Tensor> visual_rows(const HostPack& pack) const; // of each sample
  void reward(Sample& answered) const;
  void show(const Sample& answered);

  RolloutsRequest request_;
  const plan::Rollouts& settings_;
  Rewards rewards_;
  evaluation::AnswerReader answers_;
  std::optional<evaluation::Answerer> answerer_;
  uint64_t seed_;
  std::optional<report::RecordFile> shown_;
  int64_t step_ = 0;
  std::vector<std::string> lines_; // of the step
  size_t most_lines_ = 0;
};

// Advantages of the answers to one prompt by their rewards, with the rewards' standard deviation.
struct Advantages {
  std::vector<double> of_answers;
  double deviation = 0;
};
Advantages advantages(const std::vector<double>& rewards, plan::Rollouts::Advantage kind);

} // namespace fvlm::train
