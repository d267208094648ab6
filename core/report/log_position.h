// Finds the position from which a resumed run continues its logs. A resume does not depend on the logs: where one is
// missing, truncated or replaced, a warning is logged and the log starts over.
#pragma once
#include <cstdint>
#include <filesystem>

namespace fvlm::report {

struct LogPosition {
  std::filesystem::path file;
  uint64_t size = 0; // bytes that are kept
};

// metrics.jsonl of a checkpoint that was written when it had `from` bytes. A file that ends earlier keeps its whole
// lines; a file that has no end of line there is not the one that the run wrote: it is copied to metrics.jsonl.aside
// and begins anew.
LogPosition lines_to_continue(const std::filesystem::path& file, uint64_t from);

// TensorBoard's events file of the run: the newest. A new one where that has no end of a record at `from`.
LogPosition events_to_continue(const std::filesystem::path& run, uint64_t from);

} // namespace fvlm::report
