#include "base/interrupt.h"

#include "base/log.h"

#include <array>
#include <atomic>
#include <csignal>

namespace fvlm {
namespace {

constexpr std::array caught = {SIGINT, SIGTERM, SIGHUP};

std::atomic<int> noted = 0;
std::array<struct sigaction, caught.size()> former;

void note(int signal) {
  noted.store(signal);
}

} // namespace

InterruptibleWrites::InterruptibleWrites() {
  noted = 0;
  for (size_t i = 0; i < caught.size(); ++i) {
    struct sigaction action {};
    action.sa_handler = note;
    action.sa_flags = static_cast<int>(SA_RESETHAND); // the second one ends the process
    sigaction(caught[i], nullptr, &former[i]);
    if (former[i].sa_handler != SIG_IGN) sigaction(caught[i], &action, nullptr); // nohup stays
  }
}

InterruptibleWrites::~InterruptibleWrites() {
  for (size_t i = 0; i < caught.size(); ++i) sigaction(caught[i], &former[i], nullptr);
  noted = 0;
}

void throw_if_interrupted() {
  if (const int signal = noted.load(); signal != 0) throw Interrupted(signal);
}

int end_by(const Interrupted& interrupted) {
  log_warning("interrupted: what was unfinished is removed");
  std::signal(interrupted.signal(), SIG_DFL);
  std::raise(interrupted.signal());
  return 128 + interrupted.signal();
}

} // namespace fvlm
