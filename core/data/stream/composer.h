// Composer: combines measured samples into packs, and packs into steps. It runs on one thread without pixels, and its
// result depends only on the sizes and the order of the samples.
#pragma once
#include "data/samples/sample.h"
#include "data/stream/cursor.h"
#include "data/stream/quarantine.h"

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

namespace fvlm {

// Sizes in the two dimensions of a pack.
struct PackSize {
  int64_t frames = 0, rows = 0; // rows: decoder positions, visual tokens and text
};

struct BatchPlan {
  plan::Batch batch;
  PackSize capacity;
  int64_t most_samples = 0; // per pack; 0: no limit
  int64_t window = 256;     // how many samples the packer chooses from
  int64_t samples = 0;      // of the stage; 0: until the order is exhausted
  int64_t ranks = 1;
  bool every_rank_has_a_pack = true; // of each step of a fixed number of samples; otherwise packs are those of one rank
  uint64_t seed = 0;
  std::optional<plan::Documents> documents; // samples are documents, and the packs hold rows of them
  int64_t row_tokens = 0;                   // of each such row; those are what `batch` and `samples` count
};

// Returns the bin of each item, or -1 for an item that is larger than a bin; the first item that fits is in bin 0.
// `sizes` has frames and rows of each item; `most_items` of 0 means no limit. See fvlm/packer.h.
using PackFunction = std::function<std::vector<int32_t>(const std::vector<int64_t>& sizes, const PackSize& capacity,
                                                        int64_t most_items, uint64_t seed)>;

// A sample of the order after measure().
struct MeasuredSample {
  DrawnSample drawn;
  std::shared_ptr<const Sample> sample; // null when it is skipped
  SkippedSample skipped;                // always has the location; the reason only for a skipped sample
};

struct ComposedStep {
  std::vector<std::vector<MeasuredSample>> packs; // of all ranks; pack i belongs to rank i % ranks
  std::vector<SkippedSample> skipped;             // skipped since the previous step
  int64_t samples = 0;
  Cursor after;
};

class Composer {
 public:
  // `take` returns the sample at the next position, or nullopt at the end of the order. It must begin at `start.order`
  // and skip the positions that are marked in `start.done`.
  Composer(const BatchPlan& plan, const Order& order, PackFunction pack, Cursor start,
           std::function<std::optional<MeasuredSample>()> take);

  // nullopt at the end of the stage. Throws Error(data) when too many consecutive samples cannot be used.
  std::optional<ComposedStep> next();

  // The cursor at the beginning of a stage.
  static Cursor start(const BatchPlan& plan, const Order& order);
  // Whether the cursor belongs to these data: shards, weights, samples, seed and batch.
  static bool matches(const Cursor& cursor, const BatchPlan& plan, const Order& order);
  // Throws Error(data) when it does not.
  static void check(const Cursor& cursor, const BatchPlan& plan, const Order& order);
  // The cursor from which a finished stage continues when its number of samples was raised; nullopt when the data
  // differ in anything else.
  static std::optional<Cursor> extended(Cursor end, const BatchPlan& plan, const Order& order);

 private:
  static uint64_t fingerprint(const BatchPlan& plan, const Order& order);
  void compose_samples(ComposedStep& step);
  void compose_budget(ComposedStep& step);
  void compose_rows(ComposedStep& step);
  std::optional<MeasuredSample> next_row(ComposedStep& step);
  std::optional<MeasuredSample> next_usable(ComposedStep& step);
  bool wait_for(int64_t samples, ComposedStep& step);
  void count_unusable(const MeasuredSample& found);
  std::vector<int32_t> bins(const PackSize& capacity, int64_t most_items) const;
  bool skip_oversized(ComposedStep& step);
  std::string too_large(const Sample& sample) const;
  // Samples in other bins, or without a bin, keep waiting.
  void take_bins(const std::vector<int32_t>& bin_of, int32_t count, ComposedStep& step);
  void skip_sample(SkippedSample skipped, ComposedStep& step);
  void done_with(int64_t position);

  BatchPlan plan_;
  const Order& order_;
  std::function<std::optional<MeasuredSample>()> take_;
  PackFunction pack_;
  std::deque<MeasuredSample> waiting_;     // samples that wait for a pack, oldest first
  std::optional<MeasuredSample> document_; // the one that cursor_.offset is in
  int64_t consecutive_unusable_ = 0;       // consecutive samples that cannot be used
  Cursor cursor_;
};

} // namespace fvlm
