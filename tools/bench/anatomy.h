// What a device does in a training step: by part, by operation and by kernel, and where it waits.
#pragma once
#include "bench/ceiling.h"
#include "bench/job.h"

#include <nlohmann/json.hpp>

#include <functional>
#include <string>
#include <vector>

namespace fvlm::bench {

struct StepAnatomy {
  // The step as training takes it but for being watched, in milliseconds.
  struct Flow {
    double span = 0;   // from the first launch to the last one's end
    double busy = 0;   // of these with at least one kernel or copy at work
    double beside = 0; // with more than one
    double copies = 0; // those to the device and from it
    int64_t launches = 0;
    double gaps() const { return span - busy; }
  } flow;

  // The same step operation by operation, each waiting for the one before.
  struct Share {
    std::string name;
    double milliseconds = 0;
    int64_t launches = 0;
  };
  std::vector<Share> parts;   // in their order
  std::vector<Share> kernels; // by name, the longest first
  struct Operation {
    std::string name, shape;
    int64_t calls = 0;
    double milliseconds = 0; // of all calls
    LeastWork least;         // of all calls, each tensor once
  };
  Ceiling ceiling;
  std::vector<Operation> operations; // the furthest from the ceiling first, in milliseconds of all calls
  Share others;                      // what no plugin was called for

  double least_ms(const Operation& operation) const { return ceiling.seconds(operation.least) * 1e3; }
  double milliseconds() const;
  nlohmann::ordered_json json() const;
};

// `step`: the training's usual one, and a wait for the device.
StepAnatomy anatomy_of(Training& training, const Job& job, const train::StepCounts& counts,
                       const std::function<void()>& step);

} // namespace fvlm::bench
