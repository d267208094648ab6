// fvlm-engine chat: a conversation on the terminal, or one that a script writes.
#include "base/error.h"
#include "base/log.h"
#include "cli/adapter_options.h"
#include "cli/answering_model.h"
#include "cli/chat_session.h"
#include "cli/draft_options.h"
#include "cli/execution_options.h"
#include "cli/line_reader.h"
#include "cli/named_model.h"
#include "cli/sampling_options.h"
#include "cli/tensor_module.h"

#include <atomic>
#include <csignal>
#include <sys/eventfd.h>
#include <unistd.h>

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

Options chat_options() {
  Options options(
      "chat MODEL [--image FILE] [--temperature T] [--max-tokens N] [--system TEXT] [--history FILE]",
      "Talk with a model on the terminal, or run a conversation that standard input holds, a message a\n"
      "line. A line that ends with a backslash goes on in the next one. On a terminal the arrow keys recall\n"
      "and change lines, and Ctrl-C stops an answer. Commands begin with a slash; /help lists them. The page\n"
      "of `serve` is the same in a browser.",
      "chat runs/quickstart --image dog.jpg");
  with_adapter_option(with_draft_options(with_sampling_options(
      with_media_options(with_answering_options(options).positional("MODEL", named_model_help))
          .repeated_value("image", "FILE", "show an image with the first message (repeatable)")
          .repeated_value("video", "FILE", "show a video, or a folder of images, with the first message")
          .value("max-tokens", "N", "tokens of an answer at most; default 512")
          .value("history", "FILE",
                 "keep the lines that are typed in this file, for the arrow keys of later sessions"))));
  return options;
}

} // namespace

int chat_with_model(Arguments arguments) {
  const auto parsed = chat_options().parse(arguments);
  if (!parsed) return 0;
  ChatSettings settings{sampling_of(*parsed), parsed->integer_or("max-tokens", 512, 1), draft_tokens_of(*parsed)};
  const bool is_terminal = isatty(STDIN_FILENO) != 0;
  const auto history_file = parsed->value("history");
  if (history_file && !is_terminal)
    throw Error(ErrorKind::usage, "--history keeps lines that are typed, and standard input is no terminal")
        .advise("leave it out where a script writes the conversation");
  LineHistory history = history_file ? LineHistory(*history_file) : LineHistory();
  AnsweringModel model(*parsed, "chat");
  (void)model.prompts.chat(); // throws where the model has none
  use_adapter(*parsed, model.generator);
  ChatSession session(model, settings, interrupted, is_terminal);
  for (const std::string& file : parsed->values("image")) session.show_image(file);
  for (const std::string& file : parsed->values("video")) session.show_video(file);
  if (is_terminal) {
    stop_answers_at_ctrl_c();
    log_info("{} is loaded and computes {}; /help lists the commands", model.folder.string(), model.execution.text());
  }
  LineReader lines(history, interrupts, is_terminal);
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
