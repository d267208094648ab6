// Composer: puts measured samples, as they come, into packs, and packs into steps. One thread, no pixels; what it makes
// depends on nothing but the samples' sizes and their order.
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
  int64_t frames = 0, rows = 0; // rows of the decoder: visual tokens and text
};

struct BatchPlan {
  plan::Batch batch;
  PackSize capacity;
  int64_t most_samples = 0; // in a pack; 0: any number
  int64_t window = 256;     // samples that the packer chooses from
  int64_t samples = 0;      // of the stage; 0: until the order ends
  int64_t ranks = 1;
  uint64_t seed = 0;
};

// The bin of each item, or -1 for one that is larger than a bin; the first item that fits lies in bin 0. `sizes`:
// frames and rows of each item; `most_items` 0: any number. See fvlm/packer.h.
using PackFunction = std::function<std::vector<int32_t>(const std::vector<int64_t>& sizes, const PackSize& capacity,
                                                        int64_t most_items, uint64_t seed)>;

// What was found at a position of the order.
struct Measured {
  Drawn drawn;
  std::shared_ptr<const Sample> sample; // none: it is not used
  SetAside aside;                       // says where it lies in any case, and why it is not used
};

struct ComposedStep {
  std::vector<std::vector<Measured>> packs; // all ranks'; pack i is rank i % ranks'
  std::vector<SetAside> aside;              // found since the step before
  int64_t samples = 0;
  Cursor after;
};

// So many one after the other that are of no use end a stage.
inline constexpr int64_t most_useless = 10000;

class Composer {
 public:
  // `take`: what stands at the next position, or nothing at the order's end. It begins at `start.order` and passes over
  // the positions that `start.done` says are out of the way.
  Composer(const BatchPlan& plan, const Order& order, PackFunction pack, Cursor start,
           std::function<std::optional<Measured>()> take);

  // Nothing at the stage's end. Throws Error(data) where it reads on and on and finds no sample of use.
  std::optional<ComposedStep> next();

  // Of a stage that begins.
  static Cursor start(const BatchPlan& plan, const Order& order);
  // Throws Error(data) where the cursor goes by other data.
  static void check(const Cursor& cursor, const BatchPlan& plan, const Order& order);
  // Where a stage that ended at its planned samples continues, now that more are planned. Nothing where the data differ
  // in anything else.
  static std::optional<Cursor> extended(Cursor end, const BatchPlan& plan, const Order& order);

 private:
  static uint64_t fingerprint(const BatchPlan& plan, const Order& order);
  static bool goes_by(const Cursor& cursor, const BatchPlan& plan, const Order& order);
  void compose_samples(ComposedStep& step);
  void compose_budget(ComposedStep& step);
  bool wait_for(int64_t samples, ComposedStep& step);
  void note_use(const Measured& found);
  std::vector<int32_t> bins(const PackSize& capacity, int64_t most_items) const;
  bool set_oversized_aside(ComposedStep& step);
  std::string too_large(const Sample& sample) const;
  // The others wait on, those without a bin among them.
  void take_bins(const std::vector<int32_t>& bin_of, int32_t count, ComposedStep& step);
  void set_aside(SetAside aside, ComposedStep& step);
  void done_with(int64_t position);

  BatchPlan plan_;
  const Order& order_;
  std::function<std::optional<Measured>()> take_;
  PackFunction pack_;
  std::deque<Measured> waiting_; // for a pack, the oldest first
  int64_t useless_ = 0;          // samples of no use that were read one after the other
  Cursor cursor_;
};

} // namespace fvlm
