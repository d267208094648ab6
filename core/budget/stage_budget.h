// What a stage of a Plan needs of a machine's memory: the largest pack of its steps, and what `train::StepMemory`
// measures on it.
#pragma once
#include "recipe/plan.h"

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace fvlm::budget {

// Rows of a pack whose size the recipe leaves open, where no sample is larger.
constexpr int64_t usual_rows = 8192;

enum class Device { cpu, cuda };

// What memory is for. Activations go by the part of the model that keeps them; `passing` is what comes and goes:
// gradients of activations, what is computed again, and what operations need inside.
enum class Item {
  weights,
  gradients,
  masters,
  moments,
  real_weights, // of those that compute quantised
  frozen,
  workspace,
  pack,
  answers, // keys and values of those that are drawn
  vision,
  connector,
  decoder,
  loss,
  passing
};
constexpr size_t item_count = 14;
using Amounts = std::array<int64_t, item_count>;

// What a pack of the stage may hold. `assumptions` gets a line where the recipe leaves open what the data decide.
struct PackCapacity {
  int64_t frames = 0, rows = 0;
};
PackCapacity capacity_of(const plan::Stage& stage, int64_t rows_per_frame, std::vector<std::string>& assumptions);

// Sizes of a pack's buffers, all of them full.
struct PackShape {
  int64_t frames = 0, rows = 0; // rows of the decoder: visual tokens and text
  int64_t visual_rows = 0;      // of those: each text of a sample is read behind all its frames
  int64_t sequences = 0, labels = 0;
};
// The largest pack that a step of the stage can hold, every buffer full.
PackShape largest_pack(const plan::Stage& stage, int64_t rows_per_frame, std::vector<std::string>& assumptions);

struct Need {
  int64_t peak = 0;
  // What is held when the forward pass is done, and what comes and goes besides: their sum is the peak.
  Amounts amounts{};
  int64_t base = 0; // of the weights, what the checkpoints of an adapter do not have
};

// Of the host's memory, at most: frames that are read ahead, in packs of so many frames, and the copy that is written
// as a checkpoint.
int64_t packs_in_flight(const plan::Plan& plan, int64_t frames);
int64_t checkpoint_copy(const Need& need);

// Memory that tensors may take, and what that is, for people: "10.9 GiB, 90 % of what is free". No bytes: not known.
struct MemoryLimit {
  int64_t bytes = 0;
  std::string said;
  bool by_user = false;
};

// The pack of a stage with packing.tokens = "memory".
struct ChosenPack {
  int64_t frames = 0, rows = 0;
  int64_t estimated = 0; // peak of a step on it
  MemoryLimit limit;
  enum class Bound { memory, step, segments, largest } bound = Bound::memory; // why it is not larger
};

// "packs of 12,288 tokens and 768 frames, ...": what was chosen and why.
std::string chosen_text(const ChosenPack& chosen);

struct StageBudget {
  std::string stage;
  PackShape pack;
  Need step;                                   // as planned
  int64_t without_recompute = 0, with_all = 0; // the step's peak, were no layers computed again, or all
  int64_t packs_in_flight = 0, checkpoint = 0;
  // Of one of several ranks: the step's peak with ZeRO-2 (0 where the stage cannot have it), and bytes of the gradients
  // that are reduced when the backward pass is over.
  int64_t sharded_gradients_peak = 0, last_bucket = 0;
  std::optional<ChosenPack> chosen;
  std::vector<std::string> assumptions;
};

} // namespace fvlm::budget
