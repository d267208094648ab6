// AnswerDelivery: turns tokens into text and hands it to the listeners, on a thread of its own, so that the model's
// thread goes on with the next step meanwhile.
#pragma once
#include "infer/generation_batch.h"
#include "serve/answer_job.h"

#include <ATen/core/Tensor.h>

#include <condition_variable>
#include <functional>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

namespace fvlm::serve {

class AnswerDelivery {
 public:
  // The last call of a request's listener; null: it is complete. [the delivery's thread]
  using Finish = std::function<void(AnswerJob&, const Error*)>;
  // Both must outlive it.
  AnswerDelivery(const Tokenizer& tokenizer, const PromptWriter& prompts, Finish finish);
  ~AnswerDelivery();

  // All of these take effect, in their order, once send() was called. [the model's thread]
  void show_attention(std::shared_ptr<AnswerJob> job, at::Tensor maps); // on the CPU
  // Opens the answer with its prompt. `tokens`: of the prompt but the first, where their log-probabilities are wanted.
  void echo(std::shared_ptr<RunningAnswer> answer, std::vector<infer::GeneratedToken> tokens);
  void add_token(std::shared_ptr<RunningAnswer> answer, const infer::GeneratedToken& token);
  void embed(std::shared_ptr<AnswerJob> job, std::vector<float> hidden);
  // `end_token`: that ended it, where its log-probability is wanted.
  void end_answer(std::shared_ptr<RunningAnswer> answer, bool by_end_token,
                  std::optional<infer::GeneratedToken> end_token = {});
  void finish(std::shared_ptr<AnswerJob> job, std::optional<Error> error = {});
  void send();

  // Delivers what was sent, and ends the thread.
  void stop();
  double cpu_seconds(); // of the thread. Not after stop(). [any thread]

 private:
  struct Event {
    std::shared_ptr<AnswerJob> job;            // of attention, and of an end
    std::shared_ptr<RunningAnswer> answer;     // of a token, and of an answer's end
    std::vector<infer::GeneratedToken> tokens; // one, but of a prompt that is echoed
    enum class Kind { other, token, echo, end } kind = Kind::other;
    bool by_end_token = false;
    at::Tensor attention;
    std::vector<float> embedding;
    std::optional<Error> error;
  };
  void work();
  void deliver(Event& event);
  void deliver_token(RunningAnswer& answer, const infer::GeneratedToken& token);
  void deliver_echo(RunningAnswer& answer, const std::vector<infer::GeneratedToken>& tokens);
  void deliver_end(RunningAnswer& answer, const Event& event);
  void hear(RunningAnswer& answer, const ThoughtReader::Piece& piece, bool may_stop);
  void count_thoughts(RunningAnswer& answer, ThoughtReader::Place before, bool has_text);
  void say(RunningAnswer& answer, const std::string& piece);
  void end_calls(RunningAnswer& answer);
  void call(RunningAnswer& answer, const std::vector<ToolCall>& calls);
  void show_logprobs(RunningAnswer& answer, const infer::GeneratedToken& token);
  TokenLogprob shown_logprobs(RunningAnswer& answer, const infer::GeneratedToken& token) const;
  TokenLogprob named(int64_t id, double logprob) const;

  const Tokenizer& tokenizer_;
  const PromptWriter& prompts_;
  Finish finish_;
  std::vector<Event> step_; // of the model's thread

  std::mutex lock_; // of what follows
  std::condition_variable changed_;
  std::vector<Event> sent_;
  bool stops_ = false;
  std::thread thread_;
};

} // namespace fvlm::serve
