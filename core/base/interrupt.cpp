#include "base/interrupt.h"

#include "base/log.h"

#include <array>
#include <atomic>
#include <csignal>

namespace fvlm {
namespace {

constexpr std::array caught = {SIGINT, SIGTERM, SIGHUP};

std::atomic<int> received = 0;
std::array<struct sigaction, caught.size()> former;

void on_signal(int signal) {
  received.store(signal);
}

} // namespace

InterruptibleWrites::InterruptibleWrites() {
  received = 0;
  for (size_t i = 0; i < caught.size(); ++i) {
    struct sigaction action {};
    action.sa_handler = on_signal;
    action.sa_flags = static_cast<int>(SA_RESETHAND); // the second signal ends the process
    sigaction(caught[i], nullptr, &former[i]);
    if (former[i].sa_handler != SIG_IGN) sigaction(caught[i], &action, nullptr); // keeps the effect of nohup
  }
}

InterruptibleWrites::~InterruptibleWrites() {
  for (size_t i = 0; i < caught.size(); ++i) sigaction(caught[i], &former[i], nullptr);
  received = 0;
}

void throw_if_interrupted() {
  if (const int signal = received.load(); signal != 0) throw Interrupted(signal);
}

int end_process_by_signal(const Interrupted& interrupted) {
  log_warning("interrupted: removed unfinished files");
  std::signal(interrupted.signal(), SIG_DFL);
  std::raise(interrupted.signal());
  return 128 + interrupted.signal();
}

} // namespace fvlm
