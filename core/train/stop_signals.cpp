#include "train/stop_signals.h"

#include "base/error.h"

#include <unistd.h>

namespace fvlm::train {
namespace {

volatile std::sig_atomic_t wanted = 0;

extern "C" void note_signal(int) {
  if (wanted) _exit(static_cast<int>(ErrorKind::stopped));
  wanted = 1;
}

} // namespace

StopSignals::StopSignals() {
  wanted = 0;
  struct sigaction action = {};
  action.sa_handler = note_signal;
  action.sa_flags = SA_RESTART;
  sigaction(SIGTERM, &action, &term_);
  sigaction(SIGINT, &action, &interrupt_);
}

StopSignals::~StopSignals() {
  sigaction(SIGTERM, &term_, nullptr);
  sigaction(SIGINT, &interrupt_, nullptr);
}

bool StopSignals::stop_wanted() {
  return wanted != 0;
}

} // namespace fvlm::train
