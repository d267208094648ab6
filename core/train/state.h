// Where a run stands between two steps: all that exact resume needs besides tensors. One JSON object.
#pragma once
#include "data/stream/cursor.h"

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>

namespace fvlm::train {

// How the losses have been going, for whoever watches them.
struct GuardState {
  double mean_loss = 0; // running
  int64_t losses = 0;   // that it is the mean of
  int64_t in_a_row = 0; // steps that were skipped, up to now
  int64_t skipped = 0;  // all of the stage
  int64_t rolled_back_to = -1;
};

// fp16's loss scale, which follows what the gradients bear.
struct ScalerState {
  double scale = 65536;
  int64_t good_steps = 0; // since it changed
  int64_t overflows = 0;  // steps of the stage that were not applied for it
};

struct RunState {
  std::string run_id; // of run.json; empty: an earlier version wrote the checkpoint
  std::string plan_hash, stage;
  int64_t step = 0; // of the stage: so many are taken
  bool stage_done = false;
  Cursor cursor;              // of the stage's data
  std::vector<uint64_t> data; // content hashes of the stage's sources; none: an earlier version wrote the checkpoint
  int64_t optimizer_steps = 0;
  double rate_scale = 1; // what `control` made of the rates
  int64_t split = 1;     // packs are cut into so many parts, since memory ran out
  int64_t replicas = 0;  // and each of those into so many that are computed side by side; 0: not chosen yet
  GuardState guard;
  ScalerState scaler;
  int64_t samples = 0, text_tokens = 0, frames = 0; // of the stage
  int64_t left_out_rows = 0;                        // of the stage, see StepCounts
  std::map<std::string, double> interval;           // sums since the last line of metrics
  std::map<std::string, double> rates;              // of the last step, "lr.GROUP", "weight.TERM" and "loss_scale"
  std::string memory = "{}";                        // of `control`, JSON
  uint64_t metrics_bytes = 0, events_bytes = 0;
  std::string reference;                    // fingerprint of the weights that DPO's are held against
  std::optional<double> score;              // of the evaluation that decides which checkpoint is best: more is better
  int64_t evaluated_at = -1;                // the last step after which the stage's sets were evaluated
  std::map<std::string, double> evaluation; // the results of that, as `control` reads them
  int64_t controlled_at = -1;               // the last step after which `control` said what to do
  bool ends_here = false;                   // as it said, or the data: what is left of the stage is its last evaluation

  // Of the stage. `rows_per_frame`: in all texts of a sample together.
  int64_t decoder_tokens(int64_t rows_per_frame) const { return text_tokens + rows_per_frame * frames - left_out_rows; }

  std::string text() const;
  // Throws Error(data) at `where`.
  static RunState parse(std::string_view text, const std::string& where);
};

} // namespace fvlm::train
