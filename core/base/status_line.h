// The last line of the terminal, written over again and again while something long goes on. What the log says meanwhile
// goes above it. Silent where there is no terminal, or one that cannot take a line back (TERM=dumb).
#pragma once
#include <chrono>
#include <string_view>

namespace fvlm {

class StatusLine {
 public:
  explicit StatusLine(int descriptor); // of standard error, but for tests
  ~StatusLine() { clear(); }
  StatusLine(const StatusLine&) = delete;
  StatusLine& operator=(const StatusLine&) = delete;

  bool on_terminal() const { return terminal_; }
  // Whether it is worth making a new text: ten times a second.
  bool due() const;
  void show(std::string_view text); // not wider than the terminal (terminal_width)
  void clear();

  // Takes away the line that is shown, on any thread: somebody writes to the terminal.
  static void step_aside();

 private:
  void take_away();
  int descriptor_;
  bool terminal_, shown_ = false;
  std::chrono::steady_clock::time_point last_;
};

} // namespace fvlm
