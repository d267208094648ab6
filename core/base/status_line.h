// A progress line at the bottom of the terminal, which is overwritten with each update. Log lines appear above it. Does
// nothing without a terminal, or on one that cannot erase a line (TERM=dumb).
#pragma once
#include <chrono>
#include <string_view>

namespace fvlm {

class StatusLine {
 public:
  explicit StatusLine(int descriptor); // standard error, except in tests
  ~StatusLine() { clear(); }
  StatusLine(const StatusLine&) = delete;
  StatusLine& operator=(const StatusLine&) = delete;

  bool on_terminal() const { return terminal_; }
  // Whether the last update is at least 0.1 s ago.
  bool due() const;
  void show(std::string_view text); // at most terminal_width() columns
  void clear();

  // Erases the line that is shown, because something else is written to the terminal. [any thread]
  static void step_aside();

 private:
  void erase();
  int descriptor_;
  bool terminal_, shown_ = false;
  std::chrono::steady_clock::time_point last_;
};

} // namespace fvlm
