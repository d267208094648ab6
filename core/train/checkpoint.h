// Checkpoints: a model directory with a training_state/ beside its parts. Written beside, flushed, renamed; every byte
// is under a checksum. Several ranks write one together: the first the model, and each a slice of the optimizer's
// state.
#pragma once
#include "model/model.h"
#include "model/weights/model_directory.h"
#include "train/checkpoint_exchange.h"
#include "train/optimization.h"
#include "train/state.h"
#include "train/weight_sources.h"

#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace fvlm::train {

// What this rank writes of a checkpoint, in memory of its own: the run goes on while it is written.
struct Snapshot {
  ModelDescription description;
  std::map<std::string, at::Tensor> parameters; // by name in the model directory; of the first rank alone
  std::map<std::string, at::Tensor> optimizer;  // Optimization::share_of_state()
  RunState state;
};
// `untrained`: weights that are stored as they are there.
Snapshot snapshot(const ModelDescription& description, const model::Model& model, const Optimization& optimization,
                  const RunState& state, bool is_first = true, const UntrainedWeights& untrained = {});

// Throws Error(output) when the disk does not take it; nothing is left behind then.
void write_checkpoint(const std::filesystem::path& folder, const Snapshot& snapshot);
// The same by several ranks, of which this is one. The folder appears when all have written their parts, by the first
// one's hand; where one could not, the first rank says so, and nothing is left behind. Throws LostRank besides.
// `before_part`: see Faults.
void write_checkpoint(const std::filesystem::path& folder, const Snapshot& snapshot, CheckpointExchange& exchange,
                      const std::function<void(int64_t step)>& before_part = {});

// Reads every byte. Throws Error(data) that names each file that is damaged, missing or does not belong there.
void verify_checkpoint(const std::filesystem::path& folder);

RunState read_state(const std::filesystem::path& checkpoint);
// Into a model and its optimizer as they are made for the same stage. Throws Error(data) where they do not fit.
void load_checkpoint(const std::filesystem::path& checkpoint, model::Model& model, Optimization& optimization);

// The checkpoints of one stage of a run.
class StageFolder {
 public:
  explicit StageFolder(std::filesystem::path path) : path_(std::move(path)) {}
  const std::filesystem::path& path() const { return path_; }

  std::filesystem::path of(int64_t step) const;
  std::vector<int64_t> steps() const; // rising
  // At once, so that nobody finds half of it.
  static void remove(const std::filesystem::path& folder);
  // A run that went back to an earlier checkpoint, or ends where it saved one, comes by here again. What lies at
  // `folder` is moved beside it until the new one is there: forget_replaced(), or else restore_replaced().
  static void make_room(const std::filesystem::path& folder);
  static void forget_replaced(const std::filesystem::path& folder);
  static void restore_replaced(const std::filesystem::path& folder);
  // Takes away what a killed process left half done, and restores what it was about to replace.
  void tidy() const;
  // The newest that is whole. What is damaged is warned of and put aside as *.damaged.
  std::optional<int64_t> newest() const;
  // Renames those behind `step` to *.aside.
  void set_aside(int64_t step) const;
  // Keeps the newest `last` and the best `best` by their score.
  void prune(int64_t last, int64_t best) const;
  // The symbolic links `latest` and `best` (by score; where there is one) beside the checkpoints, each replaced at
  // once. A disk that has no links goes without.
  void link() const;

 private:
  std::vector<std::pair<double, int64_t>> scored() const; // score and step, the best first
  std::filesystem::path path_;
};

} // namespace fvlm::train
