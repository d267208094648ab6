#include "train/stop_signals.h"

#include "base/error.h"

#include <atomic>
#include <unistd.h>

namespace fvlm::train {
namespace {

std::atomic<bool> wanted = false; // also by another thread
volatile std::sig_atomic_t asked = 0;

extern "C" void note_signal(int) {
  if (asked) _exit(static_cast<int>(ErrorKind::stopped));
  asked = 1;
  wanted = true;
}

// Shells and kernels tell of a closed terminal more than once.
extern "C" void note_hangup(int) {
  wanted = true;
}

} // namespace

StopSignals::StopSignals() {
  asked = 0;
  struct sigaction action = {};
  action.sa_handler = note_signal;
  action.sa_flags = SA_RESTART;
  sigaction(SIGTERM, &action, &term_);
  sigaction(SIGINT, &action, &interrupt_);
  action.sa_handler = note_hangup;
  sigaction(SIGHUP, nullptr, &hangup_);
  if (hangup_.sa_handler != SIG_IGN) sigaction(SIGHUP, &action, nullptr); // else by nohup
  action.sa_handler = SIG_IGN; // whoever read what is said here is gone; that ends no run
  sigaction(SIGPIPE, &action, &pipe_);
}

StopSignals::~StopSignals() {
  wanted = false; // a request that comes before a run does is for that run
  sigaction(SIGTERM, &term_, nullptr);
  sigaction(SIGINT, &interrupt_, nullptr);
  sigaction(SIGHUP, &hangup_, nullptr);
  sigaction(SIGPIPE, &pipe_, nullptr);
}

bool StopSignals::stop_requested() {
  return wanted;
}

void StopSignals::request_stop() {
  wanted = true;
}

} // namespace fvlm::train
