// The time of a run by part: seconds spent waiting for data, in forward, in the optimizer, and so on.
#pragma once
#include <chrono>
#include <functional>
#include <map>
#include <string>

namespace fvlm {

class PartTimes {
 public:
  static constexpr const char* waiting = "wait";
  // Adds the time since the last call to `part`.
  void add_elapsed(const std::string& part) {
    report_part(part);
    const auto now = Clock::now();
    const double seconds = std::chrono::duration<double>(now - last_).count();
    seconds_[part] += seconds;
    all_ += seconds;
    if (part == waiting) waited_ += seconds;
    last_ = now;
  }
  // Ignores the time since the last call.
  void skip_elapsed() { last_ = Clock::now(); }
  // The callback is called at the end of each part, and of each piece of the backward pass, which is counted as one
  // part.
  void set_callback(std::function<void(const std::string& part)> callback) { callback_ = std::move(callback); }
  bool has_callback() const { return callback_ != nullptr; }
  void report_part(const std::string& part) const {
    if (callback_) callback_(part);
  }
  // The total since construction, and the time of `waiting` (for data) in it. take() does not reset them.
  double seconds() const { return all_; }
  double waited() const { return waited_; }
  // Returns the seconds by part since the last take().
  std::map<std::string, double> take() { return std::exchange(seconds_, {}); }

 private:
  using Clock = std::chrono::steady_clock;
  std::map<std::string, double> seconds_;
  double all_ = 0, waited_ = 0;
  Clock::time_point last_ = Clock::now();
  std::function<void(const std::string&)> callback_;
};

} // namespace fvlm
