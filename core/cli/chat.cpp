// fvlm-engine chat: a conversation on the terminal, or one that a script writes.
#include "base/error.h"
#include "base/log.h"
#include "base/terminal.h"
#include "base/text.h"
#include "cli/answering_model.h"
#include "cli/chat_session.h"
#include "cli/execution_options.h"
#include "cli/sampling_options.h"
#include "cli/tensor_module.h"

#include <fmt/format.h>

#include <array>
#include <atomic>
#include <csignal>
#include <cstdio>
#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>
#include <utility>

namespace fvlm::cli {
namespace {

std::atomic<bool> interrupted{false};
int interrupts = -1; // an eventfd, which wakes who waits for the keyboard, whichever thread got the signal

// Ctrl-C sets a flag, which ends an answer, and lets a new line begin.
void stop_answers_at_ctrl_c() {
  interrupts = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  struct sigaction stops {};
  stops.sa_handler = [](int) {
    interrupted = true;
    const uint64_t one = 1;
    [[maybe_unused]] const ssize_t written = write(interrupts, &one, sizeof one);
  };
  sigaction(SIGINT, &stops, nullptr);
}

// Whether Ctrl-C was pressed since the last call.
bool take_interrupt() {
  uint64_t count = 0;
  return ::read(interrupts, &count, sizeof count) == sizeof count;
}

// Lines of standard input. On a terminal they are edited as the terminal itself lets one edit them.
class LineReader {
 public:
  explicit LineReader(bool is_terminal) : is_terminal_(is_terminal) {}

  // Nothing at the end of the input. A line that ends with a backslash goes on in the next one.
  std::optional<std::string> read() {
    message_.clear();
    (void)take_interrupt(); // it has ended an answer
    for (show("> ");; show(". ")) {
      const auto line = read_line();
      if (!line) return message_.empty() ? std::nullopt : std::optional(message_);
      message_ += *line;
      if (!message_.ends_with('\\')) return message_;
      message_.back() = '\n';
    }
  }

 private:
  void show(const char* mark) const {
    if (!is_terminal_) return;
    fmt::print("{}", styled(mark, Style::bold));
    std::fflush(stdout);
  }

  std::optional<std::string> read_line() {
    for (;;) {
      if (const size_t end = pending_.find('\n'); end != std::string::npos) {
        std::string line = pending_.substr(0, end);
        pending_.erase(0, end + 1);
        if (line.ends_with('\r')) line.pop_back();
        return line;
      }
      std::array<pollfd, 2> sources = {{{STDIN_FILENO, POLLIN, 0}, {interrupts, POLLIN, 0}}};
      if (poll(sources.data(), sources.size(), -1) < 0) continue; // by a signal
      if (take_interrupt()) {
        pending_.clear();
        message_.clear();
        fmt::print("\n{}\n", styled("/quit or Ctrl-D ends the conversation", Style::dim));
        show("> ");
        continue;
      }
      std::array<char, 4096> bytes;
      const ssize_t count = ::read(STDIN_FILENO, bytes.data(), bytes.size());
      if (count > 0) {
        pending_.append(bytes.data(), static_cast<size_t>(count));
      } else if (pending_.empty()) {
        return std::nullopt;
      } else {
        return std::exchange(pending_, {});
      }
    }
  }

  bool is_terminal_;
  std::string pending_; // what was read and is no whole line yet
  std::string message_; // lines that go on
};

Options chat_options() {
  Options options("chat MODEL [--image FILE] [--temperature T] [--max-tokens N] [--system TEXT]",
                  "Talk with a model on the terminal, or run a conversation that standard input holds, a message a\n"
                  "line. A line that ends with a backslash goes on in the next one. Ctrl-C stops an answer. Commands\n"
                  "begin with a slash; /help lists them. The page of `serve` is the same in a browser.",
                  "chat runs/quickstart --image dog.jpg");
  with_sampling_options(
      with_media_options(with_execution_options(options).positional(
                             "MODEL", "a model directory, a checkpoint, or a run folder (its newest checkpoint)"))
          .value("image", "FILE", "show a JPEG or PNG with the first message (repeatable)")
          .value("video", "FILE", "show a video, or a folder of images, with the first message")
          .value("max-tokens", "N", "tokens of an answer at most; default 512"));
  return options;
}

} // namespace

int chat_with_model(Arguments arguments) {
  const auto parsed = chat_options().parse(arguments);
  if (!parsed) return 0;
  ChatSettings settings{sampling_of(*parsed), parsed->integer_or("max-tokens", 512)};
  if (settings.max_tokens < 1)
    throw Error(ErrorKind::usage, fmt::format("--max-tokens: expected 1 or more, got {}", settings.max_tokens));
  const bool is_terminal = isatty(STDIN_FILENO) != 0;
  AnsweringModel model(*parsed, "chat");
  ChatSession session(model, settings, interrupted, is_terminal);
  for (const std::string& file : parsed->values("image")) session.show_image(file);
  if (const auto file = parsed->value("video")) session.show_video(*file);
  if (is_terminal) {
    stop_answers_at_ctrl_c();
    log_info("{} is loaded; /help lists the commands", model.folder.string());
  }
  LineReader lines(is_terminal);
  while (const auto line = lines.read()) try {
      interrupted = false;
      if (!session.take(*line)) break;
    } catch (const Error& error) {
      if (!is_terminal) throw;
      log_error("{}", error.text());
    }
  return 0;
}

} // namespace fvlm::cli
