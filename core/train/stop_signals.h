// Signals while a run trains: the first SIGTERM or SIGINT asks it to stop between two steps, the second ends it at
// once; a closed terminal asks it to stop, and a closed pipe is passed over.
#pragma once
#include <csignal>

namespace fvlm::train {

class StopSignals {
 public:
  StopSignals();
  ~StopSignals();
  StopSignals(const StopSignals&) = delete;
  StopSignals& operator=(const StopSignals&) = delete;

  static bool stop_requested();
  static void request_stop(); // as a first signal does

 private:
  struct sigaction term_, interrupt_, hangup_, pipe_; // what was there before
};

} // namespace fvlm::train
