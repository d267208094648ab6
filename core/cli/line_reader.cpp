#include "cli/line_reader.h"

#include "base/terminal.h"

#include <fmt/format.h>

#include <array>
#include <cstdio>
#include <cstdlib>
#include <poll.h>
#include <string_view>
#include <termios.h>
#include <unistd.h>
#include <utility>

namespace fvlm::cli {
namespace {

// Past what keeps commands for the terminal from standard output: the editor's own are wanted.
void show_on_terminal(const std::string& text) {
  std::fflush(stdout);
  for (size_t at = 0; at < text.size();) {
    const ssize_t count = write(STDOUT_FILENO, text.data() + at, text.size() - at);
    if (count < 0) return;
    at += static_cast<size_t>(count);
  }
}

// Keys arrive one by one while it lives, and nothing is shown of them; what is pasted arrives between two marks.
// Signals of Ctrl-C and Ctrl-Z stay.
class KeyMode {
 public:
  KeyMode() {
    tcgetattr(STDIN_FILENO, &before_);
    termios keys = before_;
    keys.c_lflag &= ~static_cast<tcflag_t>(ICANON | ECHO);
    keys.c_cc[VMIN] = 1;
    keys.c_cc[VTIME] = 0;
    tcsetattr(STDIN_FILENO, TCSADRAIN, &keys);
    show_on_terminal("\x1b[?2004h");
  }
  ~KeyMode() {
    show_on_terminal("\x1b[?2004l");
    tcsetattr(STDIN_FILENO, TCSADRAIN, &before_);
  }
  KeyMode(const KeyMode&) = delete;
  KeyMode& operator=(const KeyMode&) = delete;

 private:
  termios before_{};
};

// Whether the terminal understands what shows a line that is edited.
bool moves_cursor() {
  const char* name = std::getenv("TERM");
  return name && name != std::string_view("dumb") && *name && isatty(STDOUT_FILENO) != 0;
}

constexpr int mark_columns = 2;

} // namespace

LineReader::LineReader(LineHistory& history, int interrupts, bool is_terminal)
    : history_(history), editor_(history), interrupts_(interrupts), is_terminal_(is_terminal),
      edits_(is_terminal && moves_cursor()) {}

std::optional<std::string> LineReader::read() {
  message_.clear();
  (void)take_interrupt(); // it has ended an answer
  for (std::string mark = "> ";; mark = message_.empty() ? "> " : ". ") {
    const auto line = edits_ ? edit_line(mark) : read_line(mark);
    if (!line) return message_.empty() ? std::nullopt : std::optional(message_);
    if (is_terminal_) history_.add(*line);
    message_ += *line;
    if (!message_.ends_with('\\')) return message_;
    message_.back() = '\n';
  }
}

bool LineReader::take_interrupt() const {
  uint64_t count = 0;
  return ::read(interrupts_, &count, sizeof count) == sizeof count;
}

bool LineReader::wait_for_input() {
  for (;;) {
    std::array<pollfd, 2> sources = {{{STDIN_FILENO, POLLIN, 0}, {interrupts_, POLLIN, 0}}};
    if (poll(sources.data(), sources.size(), -1) < 0) continue; // by a signal
    if (!take_interrupt()) return true;
    pending_.clear();
    message_.clear();
    fmt::print("\n{}\n", styled("/quit or Ctrl-D ends the conversation", Style::dim));
    return false;
  }
}

bool LineReader::read_bytes() {
  std::array<char, 4096> bytes;
  const ssize_t count = ::read(STDIN_FILENO, bytes.data(), bytes.size());
  if (count > 0) pending_.append(bytes.data(), static_cast<size_t>(count));
  return count > 0;
}

std::optional<std::string> LineReader::read_line(const std::string& mark) {
  const auto show = [&](const std::string& shown) {
    if (!is_terminal_) return;
    fmt::print("{}", styled(shown, Style::bold));
    std::fflush(stdout);
  };
  show(mark);
  for (;;) {
    if (const size_t end = pending_.find('\n'); end != std::string::npos) {
      std::string line = pending_.substr(0, end);
      pending_.erase(0, end + 1);
      if (line.ends_with('\r')) line.pop_back();
      return line;
    }
    if (!wait_for_input()) {
      show("> ");
      continue;
    }
    if (read_bytes()) continue;
    if (pending_.empty()) return std::nullopt;
    return std::exchange(pending_, {});
  }
}

std::optional<std::string> LineReader::edit_line(const std::string& first_mark) {
  const KeyMode keys;
  std::string mark = first_mark;
  editor_.clear();
  for (;;) {
    size_t taken = 0;
    auto state = LineEditor::State::editing;
    while (taken < pending_.size() && state == LineEditor::State::editing) state = editor_.feed(pending_[taken++]);
    pending_.erase(0, taken);
    show_on_terminal(editor_.shown(styled(mark, Style::bold), mark_columns, terminal_width()));
    if (state != LineEditor::State::editing) show_on_terminal("\n");
    if (state == LineEditor::State::complete) return editor_.line();
    if (state == LineEditor::State::ended) return std::nullopt;
    if (!wait_for_input()) {
      editor_.clear();
      mark = "> ";
    } else if (!read_bytes()) {
      return std::nullopt;
    }
  }
}

} // namespace fvlm::cli
