// Loader: the packs of a stage, their samples read, decoded and packed by threads ahead of time. Which they are follows
// from the seed, however many threads there are and whatever they meet.
#pragma once
#include "data/stream/composer.h"
#include "data/stream/frame_pool.h"
#include "data/stream/host_pack.h"
#include "data/stream/quarantine.h"
#include "data/stream/sample_source.h"

#include <chrono>
#include <filesystem>
#include <memory>
#include <optional>

namespace fvlm {

struct LoaderOptions {
  int workers = 0;                     // 0: one for each core but one
  uint64_t memory = uint64_t{1} << 30; // bytes of frames, those of the pack in use among them
  AllocateHost allocate = allocate_host;
  int64_t rank = 0;                     // of BatchPlan::ranks
  std::filesystem::path quarantine_log; // empty: none
  plan::Quarantine quarantine;
};

class Loader {
 public:
  // From `start`, which Composer::start() makes of a stage that begins. Source and order outlive the loader. Throws
  // Error(data) where the memory does not hold two packs, and where `start` goes by other data.
  Loader(const SampleSource& source, const Order& order, const BatchPlan& plan, PackFunction pack,
         const LoaderOptions& options, Cursor start);
  ~Loader();

  // The next pack; nothing at the stage's end. At most one pack from before may still be held: the others' memory is
  // needed. A step of which no sample can be decoded is passed over, where there is one rank. Throws Error(data) when
  // too many samples are broken, ReadError when a disk fails.
  std::optional<LoadedPack> next();

  // Behind all that was handed out or passed over.
  const Cursor& cursor() const { return cursor_; }

  // How the time since the first call of next() was spent, in seconds.
  struct Times {
    double waiting = 0; // in next(), for data
    double working = 0; // between calls
  };
  Times times() const { return times_; }

 private:
  class Kitchen; // the threads and what they share
  struct Dish;   // a pack on its way
  void note(Dish& dish);
  static HostPack plate(Dish& dish, int64_t frame_elements);

  void note_use(const Dish& dish);
  bool passes_over(const Dish& dish);

  int64_t frame_elements_, ranks_;
  std::unique_ptr<Kitchen> kitchen_;
  Quarantine quarantine_;
  int64_t broken_in_decoding_ = 0;
  int64_t useless_ = 0;     // samples of no use, one after the other
  bool step_begun_ = false; // a pack of the step was handed out
  Cursor cursor_;
  Times times_;
  std::optional<std::chrono::steady_clock::time_point> left_; // when next() last returned
};

} // namespace fvlm
