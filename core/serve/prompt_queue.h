// PromptQueue: requests that wait. Their prompts are written, with images decoded and texts tokenized, on threads of
// their own, so that the model's thread takes them as they are.
#pragma once
#include "infer/generator.h"
#include "serve/answer_job.h"

#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace fvlm::serve {

class PromptQueue {
 public:
  using Job = std::shared_ptr<AnswerJob>;
  // For requests that end here: a prompt that cannot be written, or, with null, a client that has left. [any thread]
  using Finish = std::function<void(AnswerJob&, const Error*)>;
  // Both must outlive it. `threads` write prompts.
  PromptQueue(const infer::Generator& generator, const PromptWriter& prompts, int64_t threads, Finish finish);
  ~PromptQueue();

  void add(Job job); // [any thread]
  // How many seconds written prompts wait for others to join them: the sum over all of them, or the first one alone.
  struct Patience {
    double together = 0, first = 0;
  };
  // Removes requests whose prompts are written, in the order in which they were: as many as have no more than
  // `max_frames` together, but at least one. Returns none until one of the two times is reached, and after stop().
  // [the model's thread]
  std::vector<Job> take(int64_t max_frames, const Patience& patience);
  double cpu_seconds(); // of its threads. Not after stop(). [any thread]
  void wait();          // until a prompt is written, or stop(). [the model's thread]
  // Ends the threads. Returns what was not taken.
  std::vector<Job> stop();

 private:
  void work();
  bool write(AnswerJob& job) const;

  const infer::Generator& generator_;
  const PromptWriter& prompts_;
  Finish finish_;

  std::mutex lock_; // of what follows
  std::condition_variable may_write_, is_written_;
  std::deque<Job> waiting_, written_;
  int64_t written_frames_ = 0;
  bool stops_ = false;
  std::vector<std::thread> threads_;
};

} // namespace fvlm::serve
