// LineReader: the lines of a conversation on standard input, which are edited where it is a terminal.
#pragma once
#include "cli/line_editor.h"

#include <optional>
#include <string>

namespace fvlm::cli {

class LineReader {
 public:
  // `history` may be changed, and must outlive it. `interrupts`: an eventfd that a handler of SIGINT writes to.
  LineReader(LineHistory& history, int interrupts, bool is_terminal);

  // A message. Nothing at the end of the input. A line that ends with a backslash goes on in the next one. Throws Error
  // where the history cannot be written.
  std::optional<std::string> read();

 private:
  std::optional<std::string> read_line(const std::string& mark);
  std::optional<std::string> edit_line(const std::string& mark);
  bool wait_for_input(); // false: Ctrl-C was pressed
  bool take_interrupt() const;
  bool read_bytes();

  LineHistory& history_;
  LineEditor editor_;
  int interrupts_;
  bool is_terminal_, edits_;
  std::string pending_; // what was read and is no whole line yet
  std::string message_; // lines that go on
};

} // namespace fvlm::cli
