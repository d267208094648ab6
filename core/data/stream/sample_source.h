// Where the stream gets its samples from: measured first, decoded when their pack is known.
#pragma once
#include "data/samples/sample.h"
#include "data/stream/order.h"
#include "data/stream/quarantine.h"

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace fvlm {

class SampleSource {
 public:
  virtual ~SampleSource() = default;

  // Samples of each source of the mix.
  virtual std::vector<int64_t> sizes() const = 0;
  virtual int64_t frame_elements() const = 0; // floats of one frame

  // Throws ReadError for a failing disk, another Error for a broken sample. [any thread]
  virtual Sample measure(const Drawn& drawn) const = 0;
  virtual void decode(const Drawn& drawn, const Sample& sample, std::span<float> frames) const = 0;

  // For messages: the shard, and the sample's key as far as it can be read. [any thread]
  virtual std::string place(const Drawn& drawn) const = 0;
  virtual std::string key(const Drawn& drawn) const = 0;
  // What the shards lost before anyone asked for a sample.
  virtual std::vector<SetAside> damage() const { return {}; }
};

} // namespace fvlm
