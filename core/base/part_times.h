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
  void spent_on(const std::string& part) {
    tell_of(part);
    const auto now = Clock::now();
    const double seconds = std::chrono::duration<double>(now - last_).count();
    seconds_[part] += seconds;
    all_ += seconds;
    if (part == waiting) waited_ += seconds;
    last_ = now;
  }
  // What has passed since the last call belongs to nothing that is counted here.
  void pass_over() { last_ = Clock::now(); }
  // Is told of each part as it ends, and of the parts of the backward pass, which are counted as one.
  void tell(std::function<void(const std::string& part)> told) { told_ = std::move(told); }
  bool tells() const { return told_ != nullptr; }
  void tell_of(const std::string& part) const {
    if (told_) told_(part);
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
  std::function<void(const std::string&)> told_;
};

} // namespace fvlm
