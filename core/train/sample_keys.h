// Keys of a stage's samples and of models, under which what a frozen model made of a sample is kept in a run's folder.
#pragma once
#include "data/stream/host_pack.h"
#include "data/stream/order.h"
#include "model/parameters.h"

#include <cstdint>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

namespace fvlm::train {

class SampleKeys {
 public:
  // Of the samples that stand in the order, which outlives it.
  explicit SampleKeys(const Order& order) : order_(order), state_(order.begin()) {}

  // The same in every epoch; another one once the sample's texts or bytes are others. [any thread]
  uint64_t of(const PackedSample& packed);

 private:
  uint64_t sample_hash(int64_t position);

  const Order& order_;
  std::mutex lock_; // of the next two
  Order::State state_;
  std::vector<uint64_t> hashes_; // at each position of the order: which sample of which source stands there
};

// Of a model's weights, every bit of them; or only of those whose names begin with `prefix`.
std::string fingerprint(const model::Parameters& parameters, std::string_view prefix = "");

} // namespace fvlm::train
