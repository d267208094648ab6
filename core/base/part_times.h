// Where the time of a run goes: seconds by the part of it that they were spent in.
#pragma once
#include <chrono>
#include <functional>
#include <map>
#include <string>

namespace fvlm {

class PartTimes {
 public:
  static constexpr const char* waiting = "wait";
  // What has passed since the last call belongs to `part`.
  void add_elapsed(const std::string& part) {
    report_part(part);
    const auto now = Clock::now();
    const double seconds = std::chrono::duration<double>(now - last_).count();
    seconds_[part] += seconds;
    all_ += seconds;
    if (part == waiting) waited_ += seconds;
    last_ = now;
  }
  // What has passed since the last call belongs to nothing that is counted here.
  void skip_elapsed() { last_ = Clock::now(); }
  // Is told of each part as it ends, and of the parts of the backward pass, which are counted as one.
  void set_callback(std::function<void(const std::string& part)> callback) { callback_ = std::move(callback); }
  bool has_callback() const { return callback_ != nullptr; }
  void report_part(const std::string& part) const {
    if (callback_) callback_(part);
  }
  // Of all that was counted, taken or not; and the part of it that was spent on `waiting`, for data.
  double seconds() const { return all_; }
  double waited() const { return waited_; }
  // Gives what was counted, and begins anew.
  std::map<std::string, double> take() { return std::exchange(seconds_, {}); }

 private:
  using Clock = std::chrono::steady_clock;
  std::map<std::string, double> seconds_;
  double all_ = 0, waited_ = 0;
  Clock::time_point last_ = Clock::now();
  std::function<void(const std::string&)> callback_;
};

} // namespace fvlm
