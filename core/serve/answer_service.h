// AnswerService: a model on a thread of its own, which answers the requests of all clients together, a token of each in
// every step. Requests join and leave between two steps.
#pragma once
#include "base/error.h"
#include "infer/generator.h"
#include "serve/prompt_writer.h"

#include <atomic>
#include <condition_variable>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <thread>

namespace fvlm::serve {

// Receives the answers of one request. Its functions are called on the model's thread, and must not block it.
class AnswerListener {
 public:
  virtual ~AnswerListener() = default;
  virtual void show_attention(const FrameAttention&) {}   // before any text, if the request asks for it
  virtual void add_token(int64_t, const TokenLogprob&) {} // before its text, if the request asks for log-probabilities
  virtual void add_text(int64_t answer, const std::string& piece) = 0;
  virtual void end_answer(int64_t answer, const char* finish) = 0;
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

struct ServiceLimits {
  int64_t requests = 256;                                // that wait or are answered; further ones are turned away
  int64_t cache_rows = infer::BatchOptions().cache_rows; // of keys and values, for all answers together
  int64_t prefill_rows = 0;                              // see infer::BatchOptions
  int64_t draft_tokens = 0;                              // the same
  int64_t max_tokens = 512;                              // of an answer whose request sets none
};

struct ServiceCounts {
  int64_t waiting = 0, answering = 0; // requests
  int64_t answered = 0, failed = 0, abandoned = 0;
  int64_t prompt_tokens = 0, generated_tokens = 0, steps = 0;
  infer::SchedulerCounts cache;
  infer::GenerationBatch::DraftCounts drafts;
};

class AnswerService {
 public:
  // All of these must outlive it.
  AnswerService(infer::Generator& generator, const Tokenizer& tokenizer, const PromptWriter& prompts,
                const ServiceLimits& limits);
  ~AnswerService();

  // Ends the thread at once: what is not answered by then fails. All listeners must outlive this call.
  void stop();
  // Returns false where as many requests as the limits allow wait or are answered. [any thread]
  bool submit(ChatRequest request, std::shared_ptr<AnswerListener> listener);
  ServiceCounts counts() const; // [any thread]

 private:
  struct Job;
  struct RunningAnswer;
  void work();
  void begin(std::shared_ptr<Job> job);
  bool take_token(RunningAnswer& answer, const infer::GeneratedToken& token);
  void cancel_abandoned();
  void count_batch(int64_t steps);
  void end(const infer::GeneratedAnswer& generated);
  void finish(Job& job, const Error* error);
  void fail_all(const Error& error);

  infer::Generator& generator_;
  const Tokenizer& tokenizer_;
  const PromptWriter& prompts_;
  ServiceLimits limits_;
  std::optional<infer::GenerationBatch> batch_;
  std::map<int64_t, std::shared_ptr<RunningAnswer>> running_; // by their number in the batch

  mutable std::mutex lock_; // of what follows
  std::condition_variable changed_;
  std::deque<std::shared_ptr<Job>> waiting_;
  ServiceCounts counts_;
  bool stops_ = false;
  std::thread thread_;
};

} // namespace fvlm::serve
