#include "cli/chat_session.h"

#include "base/error.h"
#include "base/terminal.h"
#include "base/text.h"
#include "data/visual_marks.h"

#include <ATen/ops/empty.h>
#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <mutex>

namespace fvlm::cli {
namespace {

// Prints one answer as it comes, on a terminal with its thoughts. Its functions are called on the model's thread, but
// for wait().
class PrintedAnswer final : public serve::AnswerListener {
 public:
  PrintedAnswer(const std::atomic<bool>& interrupted, bool is_terminal)
      : interrupted_(interrupted), is_terminal_(is_terminal) {}

  void add_thoughts(int64_t, const std::string& piece) override {
    thoughts_ += piece;
    if (!is_terminal_) return;
    fmt::print("{}", styled(strip_control_characters(piece), Style::dim));
    std::fflush(stdout);
  }
  void add_text(int64_t, const std::string& piece) override {
    if (is_terminal_ && text_.empty() && !thoughts_.empty()) fmt::print("\n\n");
    text_ += piece;
    fmt::print("{}", strip_control_characters(piece));
    std::fflush(stdout);
  }
  void end_answer(int64_t, const char* finish, const std::string&) override { finish_ = finish; }
  void complete(const serve::Usage& usage) override {
    usage_ = usage;
    finish();
  }
  void fail(const Error& error) override {
    error_ = error;
    finish();
  }
  bool is_abandoned() const override { return interrupted_; }

  // Until it is complete. Throws the Error of one that failed.
  void wait() {
    std::unique_lock lock(lock_);
    changed_.wait(lock, [this] { return finished_; });
    if (error_) throw Error(*error_);
  }
  // As a turn of the conversation, in which the template may leave out its thoughts.
  Turn turn() const {
    Turn turn{"assistant", text_};
    turn.thoughts = thoughts_;
    return turn;
  }
  // Of the whole answer, as `generate` has them: several tokens may come in one piece, so that the time between pieces
  // says nothing of tokens.
  std::string figures() const {
    const double seconds = std::chrono::duration<double>(end_ - begin_).count();
    std::string words = fmt::format("{}, {} in {:.2f} s", counted(usage_.prompt, "prompt token"),
                                    counted(usage_.completion, "new token"), seconds);
    if (seconds > 0) words += fmt::format(": {:.1f} tokens/s", static_cast<double>(usage_.completion) / seconds);
    if (interrupted_) return words + ", stopped";
    return finish_ == "length" ? words + ", not finished" : words;
  }

 private:
  void finish() {
    std::lock_guard lock(lock_);
    end_ = std::chrono::steady_clock::now();
    finished_ = true;
    changed_.notify_one();
  }

  const std::atomic<bool>& interrupted_;
  const bool is_terminal_;
  std::string thoughts_, text_, finish_;
  serve::Usage usage_;
  const std::chrono::steady_clock::time_point begin_ = std::chrono::steady_clock::now();
  std::chrono::steady_clock::time_point end_;
  std::optional<Error> error_;
  std::mutex lock_;
  std::condition_variable changed_;
  bool finished_ = false;
};

double number_of(const std::string& text) {
  try {
    size_t end = 0;
    const double value = std::stod(text, &end);
    if (end == text.size()) return value;
  } catch (const std::exception&) { // the same message for all that is no number
  }
  throw Error(ErrorKind::usage, "'{}' is no number", text);
}

int64_t whole_number_of(const std::string& text) {
  const double value = number_of(text);
  if (value != static_cast<double>(static_cast<int64_t>(value)) || value < 0)
    throw Error(ErrorKind::usage, "expected a whole number of 0 or more, got '{}'", text);
  return static_cast<int64_t>(value);
}

} // namespace

struct ChatSession::Command {
  const char* name;
  const char* argument;
  const char* help;
};

const std::vector<ChatSession::Command>& ChatSession::commands() {
  static const std::vector<Command> all = {
      {"image", "FILE", "show an image with the next message"},
      {"video", "FILE", "show a video, or a folder of images, with the next message"},
      {"system", "TEXT", "replace the system text; without a text there is none"},
      {"retry", "", "answer the last message again, with the next seed"},
      {"reset", "", "begin a new conversation"},
      {"settings", "[NAME VALUE]", "print the settings, or change one: /settings temperature 0.7"},
      {"help", "", "list the commands"},
      {"quit", "", "end the conversation, as Ctrl-D does"},
  };
  return all;
}

ChatSession::ChatSession(AnsweringModel& model, const ChatSettings& settings, const std::atomic<bool>& interrupted,
                         bool is_terminal)
    : model_(model), settings_(settings), interrupted_(interrupted), is_terminal_(is_terminal),
      service_(model.generator, model.tokenizer, model.prompts,
               {.sequences = 1, .draft_tokens = settings.draft_tokens}) {}

void ChatSession::say(const std::string& text) const {
  if (is_terminal_) fmt::print("{}\n", styled(text, Style::dim));
}

bool ChatSession::take(const std::string& line) {
  if (line.starts_with('/') && !line.starts_with("//")) {
    const size_t end = line.find(' ');
    run(line.substr(1, end == std::string::npos ? end : end - 1),
        end == std::string::npos ? "" : trimmed(line.substr(end)));
  } else if (!trimmed(line).empty()) {
    ask(line.starts_with("//") ? line.substr(1) : line);
  }
  return !quits_;
}

void ChatSession::run(const std::string& name, const std::string& argument) {
  if (name == "image") {
    show_image(argument);
  } else if (name == "video") {
    show_video(argument);
  } else if (name == "system") {
    system_ = argument;
  } else if (name == "retry") {
    retry();
  } else if (name == "reset") {
    reset();
  } else if (name == "settings") {
    set(argument);
  } else if (name == "help") {
    for (const Command& command : commands())
      fmt::print("/{:<22} {}\n", fmt::format("{} {}", command.name, command.argument), command.help);
  } else if (name == "quit" || name == "exit") {
    quits_ = true;
  } else {
    std::vector<std::string> names;
    for (const Command& command : commands()) names.emplace_back(command.name);
    const auto near = nearest(name, names);
    throw Error(ErrorKind::usage, "there is no command /{}", name)
        .advise(near ? fmt::format("did you mean /{}?", *near)
                     : "/help lists them; a message that begins with a slash begins with two");
  }
}

bool ChatSession::thinking_of(const std::string& value) const {
  if (!model_.prompts.thinking_switch())
    throw Error(ErrorKind::usage, "the model's chat template does not turn thinking on or off");
  if (value != "on" && value != "off") throw Error(ErrorKind::usage, "thinking is on or off, not '{}'", value);
  return value == "on";
}

void ChatSession::set(const std::string& argument) {
  ChatSettings changed = settings_;
  infer::Sampling& sampling = changed.sampling;
  if (!argument.empty()) {
    const size_t space = argument.find_first_of(" =");
    const std::string name = argument.substr(0, space);
    const std::string value = space == std::string::npos ? "" : trimmed(argument.substr(space + 1));
    if (name == "temperature") {
      sampling.temperature = number_of(value);
    } else if (name == "top-p") {
      sampling.top_p = number_of(value);
    } else if (name == "min-p") {
      sampling.min_p = number_of(value);
    } else if (name == "repetition-penalty") {
      sampling.repetition_penalty = number_of(value);
    } else if (name == "frequency-penalty") {
      sampling.frequency_penalty = number_of(value);
    } else if (name == "presence-penalty") {
      sampling.presence_penalty = number_of(value);
    } else if (name == "top-k") {
      sampling.top_k = whole_number_of(value);
    } else if (name == "seed") {
      sampling.seed = static_cast<uint64_t>(whole_number_of(value));
    } else if (name == "max-tokens") {
      changed.max_tokens = std::max<int64_t>(1, whole_number_of(value));
    } else if (name == "thinking") {
      changed.thinking = thinking_of(value);
    } else {
      throw Error(ErrorKind::usage, "there is no setting '{}'", name).advise("/settings lists them");
    }
    (void)infer::Sampler(sampling); // throws for what makes no sense
    settings_ = changed;
  }
  const auto thinking = model_.prompts.thinking_switch();
  fmt::print("temperature {}, top-k {}, top-p {}, min-p {}, repetition-penalty {}, frequency-penalty {}, "
             "presence-penalty {}, seed {}, max-tokens {}{}\n",
             sampling.temperature, sampling.top_k, sampling.top_p, sampling.min_p, sampling.repetition_penalty,
             sampling.frequency_penalty, sampling.presence_penalty, sampling.seed, changed.max_tokens,
             !thinking                                    ? ""
             : changed.thinking.value_or(thinking->is_on) ? ", thinking on"
                                                          : ", thinking off");
}

void ChatSession::show_image(const std::string& file) {
  if (video_)
    throw Error(ErrorKind::usage, "a conversation has one video or pictures, not both")
        .advise("/reset begins a new one");
  images_.push_back(read_image(file, "/video shows videos and folders of images"));
  marks_ += image_mark;
  say(fmt::format("the next message shows {}", file));
}

void ChatSession::show_video(const std::string& file) {
  if (video_ || !images_.empty())
    throw Error(ErrorKind::usage, "a conversation has one video or pictures, not both")
        .advise("/reset begins a new one");
  video_ = read_video(file, model_.input.media, *model_.registry);
  marks_ = video_mark;
  int64_t frames = video_->frames.size(0) * video_->copies;
  if (!grids_of(video_->tiles).empty()) frames = 0;
  for (const ImageGrid& cells : grids_of(video_->tiles)) frames += cells.steps * cells.step_frames;
  say(fmt::format("the next message shows {} of {}", counted(frames, "frame"), file));
}

void ChatSession::ask(const std::string& text) {
  const std::string words = marks_as_words(text);
  turns_.push_back({"user", marks_.empty() ? words : fmt::format("{}\n{}", marks_, words)});
  try {
    answer(true);
  } catch (...) {
    turns_.pop_back();
    throw;
  }
  marks_.clear();
}

void ChatSession::retry() {
  if (turns_.empty()) throw Error(ErrorKind::usage, "there is no message to answer again");
  const Turn last = std::move(turns_.back());
  turns_.pop_back();
  ++settings_.sampling.seed;
  try {
    answer(false);
  } catch (...) {
    turns_.push_back(last);
    throw;
  }
}

void ChatSession::reset() {
  turns_.clear();
  images_.clear();
  video_.reset();
  marks_.clear();
  say("a new conversation");
}

void ChatSession::answer(bool shows_next) {
  const bool is_video_next = marks_ == video_mark;
  const size_t next = shows_next || is_video_next ? 0 : marks_.size() / image_mark.size();
  serve::ChatRequest request;
  request.system = system_;
  request.turns = turns_;
  request.images.assign(images_.begin(), images_.end() - static_cast<std::ptrdiff_t>(next));
  if (shows_next || !is_video_next) request.frames = video_;
  request.sampling = settings_.sampling;
  request.max_tokens = settings_.max_tokens;
  if (settings_.thinking)
    request.template_variables = std::make_shared<const nlohmann::json>(
        nlohmann::json{{model_.prompts.thinking_switch()->variable, *settings_.thinking}});
  const auto printed = std::make_shared<PrintedAnswer>(interrupted_, is_terminal_);
  service_.submit(std::move(request), printed);
  printed->wait();
  fmt::print("\n");
  say(printed->figures());
  turns_.push_back(printed->turn());
}

} // namespace fvlm::cli
