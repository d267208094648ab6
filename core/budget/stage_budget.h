// What a stage of a Plan needs of a machine's memory: the model and its optimizer, and a step on the largest pack.
// Known before anything is trained, by going through a step without numbers (shadow/).
#pragma once
#include "budget/shadow/model.h"
#include "model/weights/model_directory.h"

#include <string>
#include <vector>

namespace fvlm::budget {

// Rows of a pack whose size the recipe leaves open, where no sample is larger.
constexpr int64_t usual_rows = 8192;

enum class Device { cpu, cuda };

// What the plan's preferences say of who computes.
Machine machine_of(const plan::Plan& plan, Device device);

ModelShape shape_of(const ModelDescription& description, const plan::Plan& plan);

// What a pack of the stage may hold. `assumptions` gets a line where the recipe leaves open what the data decide.
struct PackCapacity {
  int64_t frames = 0, rows = 0;
};
PackCapacity capacity_of(const plan::Stage& stage, int64_t rows_per_frame, std::vector<std::string>& assumptions);

// A full pack of this size, of samples as large as the stage's mix lets through; `most_samples` 0: any number.
PackShape full_pack(const plan::Stage& stage, int64_t rows_per_frame, int64_t frames, int64_t rows,
                    int64_t most_samples);

// The largest pack that a step of the stage can hold, every buffer full.
PackShape largest_pack(const plan::Stage& stage, int64_t rows_per_frame, std::vector<std::string>& assumptions);

// A stage at work.
struct Setting {
  const plan::Plan& plan;
  const plan::Stage& stage;
  Machine machine;
  ModelShape model;
  std::map<size_t, ModelShape> teachers; // of KL terms, by term
};
// Reads the teachers' folders. Throws Error(data).
Setting setting_of(const plan::Plan& plan, const plan::Stage& stage, const ModelDescription& description,
                   Device device);

struct Need {
  int64_t peak = 0;
  Amounts
      amounts{}; // what is held when the forward pass is done, and what comes and goes besides: their sum is the peak
};
Need step_need(const Setting& setting, const PackShape& samples, const plan::ActivationCheckpointing& recompute);
inline Need step_need(const Setting& setting, const PackShape& pack) {
  return step_need(setting, pack, setting.stage.activation_checkpointing);
}

// Of the host's memory, at most: frames that are read ahead, in packs of so many frames, and the copy that is written
// as a checkpoint.
int64_t packs_in_flight(const plan::Plan& plan, int64_t frames);
int64_t checkpoint_copy(const Need& need);

struct StageBudget {
  std::string stage;
  PackShape pack;
  Need step;                                   // as planned
  int64_t without_recompute = 0, with_all = 0; // the step's peak, were no layers computed again, or all
  int64_t packs_in_flight = 0, checkpoint = 0;
  std::vector<std::string> assumptions;
};
StageBudget stage_budget(const plan::Plan& plan, const plan::Stage& stage, const ModelDescription& description,
                         Device device);

} // namespace fvlm::budget
