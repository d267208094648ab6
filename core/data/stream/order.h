// Order: the sample at each position of a stage's infinite data stream. It is a pure function of the mix, the seed and
// the position, so that a run can resume anywhere.
#pragma once
#include "base/random.h"
#include "recipe/plan.h"

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace fvlm {

struct DrawnSample {
  int64_t position = 0;
  size_t source = 0; // of Mix::sources
  int64_t epoch = 0;
  int64_t sample = 0; // of the source
  bool operator==(const DrawnSample&) const = default;
};

class Order {
 public:
  // Every source shuffled by itself, epoch after epoch. `sizes`: samples of each source. `samples`: those of the whole
  // stage, over which the weights of the mix may change. `name`: of the stage; another name is another order.
  static Order shuffled(const plan::Mix& mix, std::vector<int64_t> sizes, uint64_t seed, std::string name,
                        int64_t samples);
  // Every sample once, source by source, for evaluation.
  static Order once(std::vector<int64_t> sizes);

  // Where a reader of the row stands. Begins as begin() says.
  struct State {
    int64_t position = 0;
    std::vector<int64_t> drawn; // samples of each source before it
    bool operator==(const State&) const = default;
  };
  State begin() const { return {0, std::vector<int64_t>(sizes_.size(), 0)}; }

  // Returns the sample at the position of the state and advances it; nullopt when every source is exhausted.
  std::optional<DrawnSample> next(State& state) const;

  // When so many samples in a row cannot be used, no sample can: several times those that there are, up to 10,000.
  int64_t most_unusable() const;

  // Equal for equal orders.
  uint64_t fingerprint() const;

  // As for a stage of so many samples, where that changes no position of the row; nothing where shares change over the
  // stage.
  std::optional<Order> of_length(int64_t samples) const;

 private:
  Order(std::vector<int64_t> sizes, uint64_t seed, std::string name);
  std::optional<size_t> source_at(const State& state) const;
  bool spent(const State& state, size_t source) const;

  std::vector<int64_t> sizes_;
  bool shuffles_ = false;
  plan::Mix mix_;
  uint64_t seed_;
  std::string name_;
  RandomStream draws_; // of the sources
  int64_t samples_ = 0;
};

} // namespace fvlm
