// DataLoader: delivers the packs of a stage; worker threads read, decode and pack samples ahead of time. The packs
// depend on the seed and the data only, not on the number of threads or their timing.
#pragma once
#include "data/stream/composer.h"
#include "data/stream/frame_pool.h"
#include "data/stream/host_pack.h"
#include "data/stream/quarantine.h"
#include "data/stream/sample_source.h"

#include <filesystem>
#include <memory>
#include <optional>

namespace fvlm {

struct DataLoaderOptions {
  int workers = 0;                     // 0: one less than the number of cores
  uint64_t memory = uint64_t{1} << 30; // limit on the bytes of frames, including the pack in use
  AllocateHost allocate = allocate_host;
  int64_t rank = 0;                     // of BatchPlan::ranks
  std::filesystem::path quarantine_log; // empty for no log
  plan::Quarantine quarantine;
};

class DataLoader {
 public:
  // Begins at `start`, which Composer::start() returns for a new stage. Source and order must outlive the loader.
  // Throws Error(data) when the memory does not hold two packs, and when `start` belongs to other data.
  DataLoader(const SampleSource& source, const Order& order, const BatchPlan& plan, PackFunction pack,
             const DataLoaderOptions& options, Cursor start);
  ~DataLoader();

  // Returns the next pack, or nullopt at the end of the stage. The caller may hold at most one earlier pack, as the
  // pool needs the buffers of the others. With a single rank, a step without any decodable sample is skipped. Throws
  // Error(data) when too many samples are broken, ReadError when a disk fails.
  std::optional<LoadedPack> next();

  // The position after everything that was delivered or skipped. With several ranks it counts, of the samples that
  // could not be decoded, this rank's failed_decodes() alone.
  const Cursor& cursor() const { return cursor_; }
  int64_t failed_decodes() const { return failed_decodes_; }
  // Throws Error(data) where too many samples up to there are broken, of all ranks.
  void check(const Cursor& cursor) const { quarantine_.check(cursor.broken, cursor.read); }

 private:
  class Pipeline;     // the worker threads and their shared state
  struct PendingPack; // a pack that is being decoded
  void record(PendingPack& pending);
  HostPack compact(PendingPack& pending) const;

  void count_unusable(const PendingPack& pending);
  bool skips(const PendingPack& pending);

  int64_t frame_elements_;
  const NormalizationTable* normalization_; // of frames that are bytes
  int64_t rank_, ranks_, most_unusable_;
  std::unique_ptr<Pipeline> pipeline_;
  Quarantine quarantine_;
  int64_t failed_decodes_ = 0;
  int64_t consecutive_unusable_ = 0; // consecutive samples that cannot be used
  bool step_begun_ = false;          // a pack of the current step was delivered
  Cursor cursor_;
};

} // namespace fvlm
