// ChatSession: the conversation of `chat`: its turns and pictures, the commands that change it, and its answers, which
// come from an AnswerService as those of `serve` do.
#pragma once
#include "cli/answering_model.h"
#include "serve/answer_service.h"

#include <atomic>
#include <optional>
#include <string>
#include <vector>

namespace fvlm::cli {

struct ChatSettings {
  infer::Sampling sampling;
  int64_t max_tokens = 512;
  int64_t draft_tokens = 0;          // see infer::BatchOptions
  std::optional<bool> thinking = {}; // nothing: as the template has it
};

class ChatSession {
 public:
  // `interrupted` ends an answer while it is written. On a terminal, figures and commands' results are printed too.
  ChatSession(AnsweringModel& model, const ChatSettings& settings, const std::atomic<bool>& interrupted,
              bool is_terminal);

  // Carries out a command, or answers a message and prints the answer as it comes. Returns false for /quit. Throws
  // Error for what is wrong; the conversation is then as before.
  bool take(const std::string& line);
  // Shows pictures with the next message. Both throw Error.
  void show_image(const std::string& file);
  void show_video(const std::string& file);

 private:
  struct Command;
  static const std::vector<Command>& commands();
  void run(const std::string& name, const std::string& argument);
  void set(const std::string& argument);
  bool thinking_of(const std::string& value) const;
  void say(const std::string& text) const; // on a terminal
  void ask(const std::string& text);
  void retry();
  void reset();
  void answer(bool shows_next); // with the pictures that wait for the next message

  AnsweringModel& model_;
  ChatSettings settings_;
  const std::atomic<bool>& interrupted_;
  bool is_terminal_, quits_ = false;
  serve::AnswerService service_;

  std::optional<std::string> system_; // nothing: the model's usual one
  std::vector<Turn> turns_;
  std::vector<std::string> images_; // the files of all turns
  std::optional<serve::PromptFrames> video_;
  std::string marks_; // of pictures that the next message shows
};

} // namespace fvlm::cli
