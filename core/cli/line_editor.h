// LineEditor: a line of text that keys change, and the lines before it. LineHistory: those lines, and the file that
// keeps them between sessions. Neither touches the terminal.
#pragma once
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace fvlm::cli {

class LineHistory {
 public:
  static constexpr size_t max_lines = 1000; // the newest ones; the file is cut to them when it is read

  LineHistory() = default;
  // Reads the file, if it is there. Throws Error where it cannot be read or written.
  explicit LineHistory(const std::filesystem::path& file);

  // Appends a line, also to the file, which only its owner can read. Empty lines and those that equal the newest one
  // are left out, and of the file those with line breaks.
  void add(const std::string& line);
  const std::vector<std::string>& lines() const { return lines_; }

 private:
  std::optional<std::filesystem::path> file_;
  std::vector<std::string> lines_;
};

class LineEditor {
 public:
  explicit LineEditor(const LineHistory& history) : history_(history) { clear(); }

  enum class State { editing, complete, ended }; // ended: Ctrl-D in an empty line
  // A byte as a terminal sends it: UTF-8, control characters, and escape sequences of keys. What is pasted comes
  // between two such sequences (bracketed paste); its line breaks and tabs belong to the line.
  State feed(char byte);
  const std::string& line() const { return line_; }
  void clear(); // begins a new line

  // What shows the line on a terminal in place of what was shown, behind `mark` of so many columns, with the cursor
  // where it is. A line that is too long is cut on both sides. A line break is shown as a sign.
  std::string shown(const std::string& mark, int mark_columns, int columns) const;

 private:
  void feed_pasted(char byte);
  void feed_control(char byte);
  void feed_escape(char byte);
  void insert(char byte);
  void erase(size_t begin, size_t end);
  size_t before(size_t at) const; // the character's beginning
  size_t behind(size_t at) const;
  size_t word_begin() const;
  void recall(size_t place);

  const LineHistory& history_;
  std::string line_, draft_; // the draft is the new line while an older one is shown
  size_t cursor_ = 0;        // in bytes
  size_t place_ = 0;         // in the history; behind its end: the new line
  std::string escape_;       // the beginning of an escape sequence
  bool pastes_ = false;
};

} // namespace fvlm::cli
