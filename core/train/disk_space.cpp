#include "train/disk_space.h"

#include "base/error.h"
#include "base/log.h"
#include "base/text.h"

#include <ATen/core/Tensor.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <sys/resource.h>
#include <unistd.h>

namespace fvlm::train {

namespace fs = std::filesystem;

uint64_t checkpoint_bytes(const model::Model& model, const Optimization& optimization,
                          const UntrainedWeights& untrained) {
  size_t bytes = 0;
  for (const ops::Parameter& parameter : model.parameters().all()) {
    if (parameter.in_base) continue; // an adapter's checkpoint names its base
    const auto kept = untrained.find(directory_name(parameter.name));
    bytes += (kept == untrained.end() ? parameter.value : kept->second).nbytes();
  }
  return bytes + optimizer_bytes(optimization);
}

uint64_t optimizer_bytes(const Optimization& optimization) {
  uint64_t bytes = 0;
  for (const auto& [name, tensor] : optimization.state())
    bytes += tensor.element_size() * static_cast<size_t>(optimization.elements());
  return bytes;
}

void check_file_limit(const fs::path& stage_folder, uint64_t bytes) {
  rlimit limit{};
  if (getrlimit(RLIMIT_FSIZE, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY || limit.rlim_cur >= bytes) return;
  throw Error(ErrorKind::output, "a file of a checkpoint takes {}, and this process may write files of {} at most",
              human_bytes(bytes), human_bytes(limit.rlim_cur))
      .at(stage_folder.string())
      .advise("raise the limit before the run starts (ulimit -f)");
}

int64_t kept_checkpoints(const plan::Checkpoint& plan, const plan::Stage& stage) {
  const int64_t kept = plan.keep_last + (stage.evaluation.sets.empty() ? 0 : plan.keep_best);
  if (plan.every <= 0) return 1;
  const int64_t written = stage.steps ? *stage.steps / plan.every + 1 : kept;
  return std::max<int64_t>(1, std::min(kept, written));
}

void check_room(const fs::path& stage_folder, uint64_t bytes, int64_t kept, int64_t there) {
  std::error_code failed;
  fs::create_directories(stage_folder, failed);
  if (!failed && access(stage_folder.c_str(), W_OK | X_OK) != 0) failed = {errno, std::generic_category()};
  if (failed)
    throw Error(ErrorKind::output, "checkpoints cannot be written here: " + failed.message())
        .at(stage_folder.string())
        .advise("make it a folder that you may write, or train into another one: --run-dir");
  const auto space = fs::space(stage_folder, failed);
  if (failed) return; // a disk that does not tell
  if (space.available < bytes)
    throw Error(ErrorKind::output, "a checkpoint takes {}, and {} are free on this disk", human_bytes(bytes),
                human_bytes(space.available))
        .at(stage_folder.string())
        .advise("make room, or train into a folder on another disk: --run-dir");
  // One more than are kept: the next one is written before the oldest is removed.
  const uint64_t needed = bytes * static_cast<uint64_t>(std::max<int64_t>(1, kept + 1 - there));
  if (space.available < needed)
    log_warning("{}: {} are free on this disk, and the checkpoints of the stage will need {} ({} of {} are kept); "
                "checkpoint.keep_last says how many",
                stage_folder.string(), human_bytes(space.available), human_bytes(needed), kept, human_bytes(bytes));
}

} // namespace fvlm::train
