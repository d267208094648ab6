// What the threads of an AnswerService hand to each other: a request on its way, and one of its answers.
#pragma once
#include "base/error.h"
#include "data/stop_texts.h"
#include "data/streaming_detokenizer.h"
#include "data/thoughts.h"
#include "data/tool_calls.h"
#include "serve/answer_json.h"
#include "serve/chat_request.h"
#include "serve/prompt_writer.h"

#include <atomic>
#include <chrono>
#include <memory>

namespace fvlm::serve {

// Receives the answers of one request. Its functions are called by one thread at a time, and must not block it.
class AnswerListener {
 public:
  virtual ~AnswerListener() = default;
  virtual void release_files() {}                         // the request's pictures are decoded, and its text written
  virtual void show_attention(const FrameAttention&) {}   // before any text, if the request asks for it
  virtual void add_token(int64_t, const TokenLogprob&) {} // before its text, if the request asks for log-probabilities
  virtual void add_thoughts(int64_t, const std::string&) {} // before its text
  virtual void add_text(int64_t answer, const std::string& piece) = 0;
  virtual void add_call(int64_t, const ToolCall&) {}       // of requests with tools
  virtual void add_embedding(const std::vector<float>&) {} // of requests for one: the last hidden state
  // `stop_text`: of the request, at which the answer ended; empty: at none.
  virtual void end_answer(int64_t answer, const char* finish, const std::string& stop_text) = 0;
  // One of these is the last call.
  virtual void complete(const Usage& usage) = 0;
  virtual void fail(const Error& error) = 0;
  // Whether the client has left, so that its answers are not needed. [any thread]
  virtual bool is_abandoned() const = 0;

 protected:
  AnswerListener() = default;
  AnswerListener(const AnswerListener&) = default;
  AnswerListener& operator=(const AnswerListener&) = default;
};

struct AnswerJob {
  ChatRequest request = {};
  std::shared_ptr<AnswerListener> listener = {};
  WrittenPrompt prompt = {}; // once it is written
  std::chrono::steady_clock::time_point written = {};
  Usage usage = {};       // of the prompt by the model's thread, of the answers by who delivers them
  int64_t open = 0;       // answers that have not ended, for the model's thread
  bool begun = false;     // the model's thread has taken it
  bool abandoned = false; // it was dropped because its client had left
  bool over = false;      // its listener has had its last call
};

struct RunningAnswer {
  // `special`: the tokenizer's special_texts().
  RunningAnswer(std::shared_ptr<AnswerJob> of, int64_t at, const Tokenizer& tokenizer,
                const std::vector<std::string>& special)
      : job(std::move(of)), number(at), text(tokenizer, shown(*job, special)), stops(job->request.stops) {
    if (job->prompt.thinking.tags) thoughts.emplace(job->prompt.thinking);
    if (const ToolCallForm* form = form_of(*job)) calls.emplace(*form, &job->request.tools->list);
  }

  // How it may call tools, which it need not; null: it has none, or has to call one, which its form sees to.
  static const ToolCallForm* form_of(const AnswerJob& job) {
    return job.request.tools && !job.request.tools->only ? job.prompt.tool_calls : nullptr;
  }
  // Texts of thoughts and calls that are special tokens, and others that the request wants to see.
  static std::vector<std::string> shown(const AnswerJob& job, const std::vector<std::string>& special) {
    std::vector<std::string> texts;
    if (job.request.shows_special_tokens) texts = special;
    if (const ThoughtTags* const tags = job.prompt.thinking.tags) texts.insert(texts.end(), {tags->begin, tags->end});
    if (const ToolCallForm* const form = form_of(job)) {
      texts.insert(texts.end(), {form->begin, form->end});
      texts.insert(texts.end(), form->marks.begin(), form->marks.end());
    }
    return texts;
  }

  const std::shared_ptr<AnswerJob> job;
  const int64_t number;              // among those of its request
  std::atomic<bool> stopped = false; // by a stop text: what the model adds behind it is dropped
  // Of who delivers the answer.
  StreamingDetokenizer text;
  std::optional<ThoughtReader> thoughts;
  StopTexts stops; // of what is no thought
  std::optional<ToolCallReader> calls;
  std::string required; // the text of a call that it has to make
  int64_t called = 0;
  int64_t tokens = 0, thought_tokens = 0;
  std::vector<TokenLogprob> undecided; // of tokens that may be thoughts
  int64_t characters = 0;              // of the tokens so far
};

} // namespace fvlm::serve
