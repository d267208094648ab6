// The program that the engine is compared with: a process that alternates with this one, so that other load on the
// machine slows both alike. Its arguments describe the work. For each line of its standard input, which is a number of
// repetitions or the description of one piece of work, it does the work and answers with a line of JSON. It exits at
// the end of its input. tools/oracle/bench-step --turns and train-step run training steps: {"times_ms": [one per step],
// "cpu_ms": [one per step], "loss": the last step's}. For "for SECONDS" train-step runs as many as that takes.
#pragma once
#include "bench/times.h"

#include <optional>
#include <string>
#include <vector>

namespace fvlm::bench {

class Peer {
 public:
  // A shell runs `command` followed by `arguments`. It inherits standard error.
  Peer(std::string command, const std::vector<std::string>& arguments);
  ~Peer();
  Peer(const Peer&) = delete;
  Peer& operator=(const Peer&) = delete;

  // Sends a number of repetitions, or a line, and returns the answer. Throws Error(device) for a missing answer or one
  // that is not JSON.
  nlohmann::json ask(int64_t count) { return ask(std::to_string(count)); }
  nlohmann::json ask(const std::string& line);
  // Throws Error(device) that quotes the last answer.
  [[noreturn]] void fail_with_answer(const std::string& missing);

  struct Answer {
    std::vector<StepTime> turns;
    double loss; // of the last step; 0 without steps
  };
  // Runs so many steps, or steps for so many seconds, at least one. Throws Error(device) for a missing or invalid
  // answer.
  Answer run(int64_t steps);
  Answer run_for(double seconds);
  // Peak device memory so far, if the last answer of run() reported it; else 0.
  int64_t peak_bytes() const { return peak_bytes_; }

 private:
  // `steps`: how many there have to be; absent: at least one.
  Answer steps_in(const nlohmann::json& answer, std::optional<int64_t> steps);
  std::string read_line();
  [[noreturn]] void fail(const std::string& what);

  std::string command_, received_, answer_;
  int process_ = -1, socket_ = -1;
  int64_t peak_bytes_ = 0;
};

// Throws Error(data) if the losses of the engine and its peer differ by more than their types explain (relatively),
// because their times are then not comparable.
void require_same_loss(double engine, double peer, double tolerance, const std::string& where);
constexpr double loss_tolerance_of_bf16 = 0.01;

} // namespace fvlm::bench
