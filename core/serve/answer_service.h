// AnswerService: a model on a thread of its own, which answers the requests of all clients together, a token of each in
// every step. Requests join and leave between two steps. Their prompts are written before (PromptQueue), and their
// answers are delivered behind it (AnswerDelivery), on other threads.
#pragma once
#include "serve/answer_delivery.h"
#include "serve/prompt_queue.h"

#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

namespace fvlm::serve {

struct ServiceLimits {
  int64_t requests = 256;                                  // that wait or are answered; further ones are turned away
  int64_t cache_rows = infer::BatchOptions().cache_rows;   // of keys and values, for all answers together
  int64_t sequences = infer::BatchOptions().max_sequences; // answers at once where the decoder carries states
  int64_t prefill_rows = 0;                                // see infer::BatchOptions
  int64_t draft_tokens = 0;                                // the same
  std::optional<int64_t> max_tokens;                       // of an answer whose request sets none; see usual_tokens()
};

// Tokens of an answer, behind a prompt of so many rows, whose request sets none: by default as many as the cache has
// room for besides, so that it need not grow, but 512 at least. The model's positions end it in any case.
int64_t usual_tokens(const ServiceLimits& limits, int64_t prompt_rows);

// Threads that decode images and tokenize texts, and as many that parse requests: a half of the cores, at most 8.
int64_t prompt_threads();

struct ServiceCounts {
  int64_t waiting = 0, answering = 0; // requests
  int64_t answered = 0, failed = 0, abandoned = 0;
  int64_t prompt_tokens = 0, generated_tokens = 0, steps = 0;
  infer::SchedulerCounts cache;
  int64_t cache_bytes = 0;
  infer::GenerationBatch::DraftCounts drafts;
  std::map<size_t, int64_t> by_adapter; // requests that were taken
  // What the model's thread does: waits for prompts, encodes their frames, and steps.
  double waiting_seconds = 0, encoding_seconds = 0;
  infer::GenerationBatch::StepTimes reading, decoding;
};

class AnswerService {
 public:
  enum class Start { at_once, prepared };
  // All of these must outlive it. `prepared`: a prompt is answered first, so that a cache that fits in no memory and
  // plugins that cannot be used fail here; on a GPU passes that read prompts are captured in their sizes, so that no
  // request has to wait for that.
  AnswerService(infer::Generator& generator, const Tokenizer& tokenizer, const PromptWriter& prompts,
                const ServiceLimits& limits, Start start = Start::at_once);
  ~AnswerService();

  // Ends the thread at once: what is not answered by then fails. All listeners must outlive this call.
  void stop();
  // Returns false, and takes none, where more requests than the limits allow would wait or be answered. [any thread]
  bool submit(std::vector<std::pair<ChatRequest, std::shared_ptr<AnswerListener>>> requests);
  bool submit(ChatRequest request, std::shared_ptr<AnswerListener> listener);
  // Of the request's prompt, as Usage counts them. Throws Error where it cannot be answered. [any thread]
  int64_t prompt_tokens(const ChatRequest& request) const;
  ServiceCounts counts() const; // [any thread]
  struct CpuSeconds {
    double prompts, model, delivery; // of the threads
  };
  CpuSeconds cpu_seconds(); // not after stop(). [any thread]

 private:
  using Job = PromptQueue::Job;
  void begin_batch();
  void prepare();
  void work();
  void serve_once();
  void learn_joining_time(double begin, bool joins);
  std::vector<Job> take_prompts();
  bool begin(std::vector<Job> jobs);
  std::vector<infer::Prompt> encode(const std::vector<Job>& jobs);
  void add(const Job& job, infer::Prompt prompt);
  void fail(const Job& job, const Error& error);
  void cancel_abandoned();
  void count_batch(int64_t steps);
  void count_times(double waiting, double encoding);
  void end(const infer::GeneratedAnswer& generated);
  void finish(AnswerJob& job, const Error* error); // [any thread]
  void fail_running(const Error& error);

  infer::Generator& generator_;
  const Tokenizer& tokenizer_;
  const PromptWriter& prompts_;
  std::shared_ptr<const grammar::TokenTable> token_table_; // of it, since an answer's form was asked for
  std::shared_ptr<const grammar::TokenTable> call_table_;  // the same of calls
  grammar::RecentTexts recent_texts_;
  ServiceLimits limits_;
  std::optional<infer::GenerationBatch> batch_;
  std::map<int64_t, std::shared_ptr<RunningAnswer>> running_; // by their number in the batch
  std::optional<double> joined_at_;                           // when prompts did in the step before
  double joining_seconds_ = 0;    // for which prompts that join hold up the others, besides the steps themselves
  double continuing_seconds_ = 0; // of a step that only continues answers
  std::atomic<bool> stops_ = false;

  mutable std::mutex lock_; // of the counts
  ServiceCounts counts_;

  AnswerDelivery delivery_;
  PromptQueue queue_;
  std::thread thread_;
};

} // namespace fvlm::serve
