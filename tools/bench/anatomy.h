// The anatomy of a training step on a device: time by part, by operation and by kernel, and idle gaps.
#pragma once
#include "bench/ceiling.h"
#include "bench/job.h"

#include <nlohmann/json.hpp>

#include <functional>
#include <string>
#include <vector>

namespace fvlm::bench {

struct StepAnatomy {
  // The step as training runs it, under the profiler, in milliseconds.
  struct Flow {
    double span = 0;   // from the first launch to the end of the last
    double busy = 0;   // of span: time with at least one kernel or copy running
    double beside = 0; // of busy: time with more than one running concurrently
    double copies = 0; // time of copies to and from the device
    int64_t launches = 0;
    double gaps() const { return span - busy; }
  } flow;

  // The same step with a synchronization after each operation.
  struct Share {
    std::string name;
    double milliseconds = 0;
    int64_t launches = 0;
  };
  std::vector<Share> parts;   // in the order of the step
  std::vector<Share> kernels; // by name, the longest first
  struct Operation {
    std::string name, shape;
    int64_t calls = 0;
    double milliseconds = 0; // of all calls
    MinimalWork minimal;     // of all calls, counting each tensor once
  };
  Ceiling ceiling;
  std::vector<Operation> operations; // sorted by the milliseconds that all calls take above the minimum
  Share others;                      // work outside of calls to plugins

  double minimal_ms(const Operation& operation) const { return ceiling.seconds(operation.minimal) * 1e3; }
  double milliseconds() const;
  nlohmann::ordered_json json() const;
};

// `step` runs one ordinary training step and synchronizes with the device.
StepAnatomy anatomy_of(Training& training, const Job& job, const train::StepCounts& counts,
                       const std::function<void()>& step);

} // namespace fvlm::bench
