// What the stages of a run need besides its model, looked at before the first of them trains: a mistake in the last one
// is found now, and not after hours.
#pragma once
#include "recipe/resolve.h"

#include <filesystem>
#include <vector>

namespace fvlm::train {

struct StageFilesRequest {
  std::filesystem::path run;     // what lies in this folder comes into being while the run trains
  bool starts_elsewhere = false; // `--from` says what the first of the stages starts from
};

// Throws Error(data) for shards, models to start from and teachers that are not there, and for teachers that do not fit
// the model. Reads headers, configs and, of a teacher with another tokenizer.json, its tokens.
void require_stage_files(const recipe::Resolved& resolved, const std::vector<const plan::Stage*>& stages,
                         const StageFilesRequest& request);

} // namespace fvlm::train
