// SIGTERM and SIGINT while a run trains: the first asks it to stop between two steps, the second ends it at once.
#pragma once
#include <csignal>

namespace fvlm::train {

class StopSignals {
 public:
  StopSignals();
  ~StopSignals();
  StopSignals(const StopSignals&) = delete;
  StopSignals& operator=(const StopSignals&) = delete;

  static bool stop_wanted();

 private:
  struct sigaction term_, interrupt_; // what was there before
};

} // namespace fvlm::train
