// The steps of a device by itself: forward, backward, clip and optimizer on packs that lie decoded in the host's
// memory.
#pragma once
#include "bench/times.h"
#include "bench/training.h"
#include "data/stream/host_pack.h"
#include "device/clocks.h"

#include <nlohmann/json.hpp>

#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace fvlm::bench {

class DeviceSteps {
 public:
  struct Pack {
    HostPack host;
    train::StepCounts counts;
  };
  // The training outlives it. Steps take the packs in turn, from the first one on.
  DeviceSteps(Training& training, std::vector<Pack> packs);

  // Takes a step and waits for the device. Meanwhile a GPU gets the next pack, as in training; on a CPU that is staged
  // after the time was taken.
  StepTime step();

 private:
  void stage_next();
  Training& training_;
  std::vector<Pack> packs_;
  size_t next_ = 0;
  PartTimes untimed_;
  std::shared_ptr<train::GradientComputer::StagedPack> staged_;
};

// Steps that went on for a while, and the clock and power of the device meanwhile.
struct Sustained {
  Times times;
  device::Clocks clocks;
  double samples_per_second(int64_t samples) const { // of a step; over all of their time
    return static_cast<double>(samples) * static_cast<double>(times.count()) / times.total() * 1e3;
  }
  nlohmann::ordered_json json(int64_t samples) const;
};

// The clock and power of the device while `work` runs.
device::Clocks clocks_during(at::Device device, const std::function<void()>& work);
// As members of a JSON object, null where they are not known; and as cells of a table: MHz and watts.
void add_clocks(const device::Clocks& clocks, nlohmann::ordered_json& json);
std::vector<std::string> clock_cells(const device::Clocks& clocks);

} // namespace fvlm::bench
