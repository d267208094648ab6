// The program we are measured against: a process that takes turns with us, so that a busy machine slows both alike.
//
// It is started with arguments that say what to run. For each line of its standard input, a number of things to do or
// one of them by its description, it does them and answers with a line of JSON. At the end of its input it ends.
// tools/oracle/bench-step --turns is one that runs training steps: {"times_ms": [one a step], "cpu_ms": [one a step],
// "loss": of the last}.
#pragma once
#include "bench/times.h"

#include <string>
#include <vector>

namespace fvlm::bench {

class Peer {
 public:
  // `command` is given to a shell, with `arguments` behind it. Its standard error is ours.
  Peer(std::string command, const std::vector<std::string>& arguments);
  ~Peer();
  Peer(const Peer&) = delete;
  Peer& operator=(const Peer&) = delete;

  // Does so many of what it does, or what the line says. Throws Error(device) where there is no answer, or one that is
  // not JSON.
  nlohmann::json ask(int64_t count) { return ask(std::to_string(count)); }
  nlohmann::json ask(const std::string& line);
  // Throws Error(device) that quotes the last answer.
  [[noreturn]] void fail_at_answer(const std::string& missing);

  struct Answer {
    std::vector<Turn> turns;
    double loss; // of the last step; of no step nothing
  };
  // Runs so many steps. Throws Error(device) where there is no answer, or one that makes no sense.
  Answer run(int64_t steps);
  // Of the device, so far, where the last answer of run() said so; else 0.
  int64_t peak_bytes() const { return peak_bytes_; }

 private:
  std::string read_line();
  [[noreturn]] void fail(const std::string& what);

  std::string command_, received_, answer_;
  int process_ = -1, socket_ = -1;
  int64_t peak_bytes_ = 0;
};

// Where the losses of the engine and its peer lie further apart, relatively, than the two's types explain, their times
// compare nothing: throws Error(data).
void require_same_loss(double engine, double peer, double tolerance, const std::string& where);
constexpr double loss_tolerance_of_bf16 = 0.01;

} // namespace fvlm::bench
