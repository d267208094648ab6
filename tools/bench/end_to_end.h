// Training from JPEGs in shards, end to end: read, decoded, resized, packed, staged and trained on, beside the steps of
// the device by itself on packs of the same shapes.
#pragma once
#include "bench/device_steps.h"
#include "bench/jpeg_shards.h"
#include "bench/progress.h"
#include "bench/stream_steps.h"
#include "plugin/registry.h"

#include <string>

namespace fvlm::bench {

struct EndToEndRequest : TrainingSetting {
  std::string shape = "135m";
  int64_t batch = 64;        // samples a step
  int64_t frames = 8;        // of a sample
  int64_t pictures = 1;      // JPEGs of a sample: as many as frames, or one, which is repeated
  int64_t text = 128;        // tokens of a sample
  int64_t workers = 0;       // threads that decode; 0: one for each core but one
  double seconds = 30;       // of each side, in two turns
  JpegShards shards() const; // that hold its samples, but for their number; throws Error(usage)
};

struct EndToEndReport {
  int64_t batch = 0, workers = 0;
  Sustained device;                                                       // its steps, one after the other
  StreamPart whole;                                                       // end to end: `seconds` by the wall clock
  device::Clocks whole_clocks;                                            // both clocks are those of the second turn
  double first_loss = 0, last_loss = 0;                                   // end to end
  double device_rate() const { return device.samples_per_second(batch); } // samples a second
  double rate() const { return whole.a_second(whole.samples); }
  double share_of_device() const { return rate() / device_rate(); }
  double waiting() const; // the share of its time that training waited for data
  nlohmann::ordered_json json() const;
};

EndToEndReport measure_end_to_end(const EndToEndRequest& request, const MadeShards& data, Registry& registry,
                                  const Progress& progress);

} // namespace fvlm::bench
