// The time of a run by part: seconds spent waiting for data, in forward, in the optimizer, and so on.
#pragma once
#include <chrono>
#include <functional>
#include <map>
#include <string>

namespace fvlm {

class PartTimes {
 public:
  using Clock = std::chrono::steady_clock;
  static constexpr const char* waiting = "wait";
  // Adds the time since the last call to `part`.
  void add_elapsed(const std::string& part) {
    if (callback_) callback_(part);
    const auto now = Clock::now();
    if (spans_) spans_(part, last_, now);
    const double seconds = std::chrono::duration<double>(now - last_).count();
    seconds_[part] += seconds;
    all_ += seconds;
    if (part == waiting) waited_ += seconds;
    last_ = piece_begin_ = now;
  }
  // Ignores the time since the last call; where spans are recorded, as one of `part`.
  void skip_elapsed(const char* part = nullptr) {
    const auto now = Clock::now();
    if (part && spans_) spans_(part, last_, now);
    last_ = piece_begin_ = now;
  }
  // The callback is called at the end of each part, and of each piece of the backward pass, which is counted as one
  // part.
  void set_callback(std::function<void(const std::string& part)> callback) { callback_ = std::move(callback); }
  // The same with its begin and end. Pieces of the backward pass come before the part that they lie in.
  using Spans = std::function<void(const std::string& part, Clock::time_point begin, Clock::time_point end)>;
  void set_spans(Spans spans) { spans_ = std::move(spans); }
  const Spans& spans() const { return spans_; }
  bool has_callback() const { return callback_ || spans_; }
  void report_part(const std::string& part) {
    if (callback_) callback_(part);
    if (!spans_) return;
    const auto now = Clock::now();
    spans_(part, piece_begin_, now);
    piece_begin_ = now;
  }
  // The total since construction, and the time of `waiting` (for data) in it. take() does not reset them.
  double seconds() const { return all_; }
  double waited() const { return waited_; }
  // Returns the seconds by part since the last take().
  std::map<std::string, double> take() { return std::exchange(seconds_, {}); }

 private:
  std::map<std::string, double> seconds_;
  double all_ = 0, waited_ = 0;
  Clock::time_point last_ = Clock::now(), piece_begin_ = last_;
  std::function<void(const std::string&)> callback_;
  Spans spans_;
};

} // namespace fvlm
