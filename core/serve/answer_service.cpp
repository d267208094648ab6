#include "serve/answer_service.h"

#include "base/log.h"
#include "base/task_thread.h"
#include "data/streaming_detokenizer.h"

#include <ATen/core/grad_mode.h>

#include <utility>

namespace fvlm::serve {

struct AnswerService::Job {
  ChatRequest request;
  std::shared_ptr<AnswerListener> listener;
  Usage usage;
  int64_t open = 0; // answers that have not ended
  bool abandoned = false;
};

struct AnswerService::RunningAnswer {
  std::shared_ptr<Job> job;
  int64_t number; // among those of its request
  StreamingDetokenizer text;
};

AnswerService::AnswerService(infer::Generator& generator, const Tokenizer& tokenizer, const PromptWriter& prompts,
                             const ServiceLimits& limits)
    : generator_(generator), tokenizer_(tokenizer), prompts_(prompts), limits_(limits),
      thread_(start_thread([this] { work(); })) {}

AnswerService::~AnswerService() {
  stop();
}

void AnswerService::stop() {
  if (!thread_.joinable()) return;
  {
    std::lock_guard lock(lock_);
    stops_ = true;
  }
  changed_.notify_one();
  thread_.join();
}

bool AnswerService::submit(ChatRequest request, std::shared_ptr<AnswerListener> listener) {
  std::lock_guard lock(lock_);
  if (stops_ || counts_.waiting + counts_.answering >= limits_.requests) return false;
  waiting_.push_back(std::make_shared<Job>(Job{std::move(request), std::move(listener), {}, 0, false}));
  ++counts_.waiting;
  changed_.notify_one();
  return true;
}

ServiceCounts AnswerService::counts() const {
  std::lock_guard lock(lock_);
  return counts_;
}

void AnswerService::work() {
  const c10::InferenceMode no_autograd;
  for (;;) {
    std::shared_ptr<Job> next; // one a step, so that the images of many do not hold up the others
    {
      std::unique_lock lock(lock_);
      if (running_.empty()) changed_.wait(lock, [this] { return stops_ || !waiting_.empty(); });
      if (stops_) break;
      if (!waiting_.empty()) {
        next = std::move(waiting_.front());
        waiting_.pop_front();
        --counts_.waiting, ++counts_.answering;
      }
    }
    try {
      if (next) begin(std::move(next));
      cancel_abandoned();
      if (!batch_) continue;
      count_batch(batch_->step() ? 1 : 0);
      for (const infer::GeneratedAnswer& generated : batch_->take_finished()) end(generated);
    } catch (const std::exception& error) { // out of memory, for example
      log_error("a step failed, and with it all its requests: {}", error.what());
      fail_all(Error(ErrorKind::internal, "the model failed while it answered; the server's log says why"));
    }
  }
  fail_all(Error(ErrorKind::stopped, "the server stops"));
}

void AnswerService::begin(std::shared_ptr<Job> job) {
  if (job->listener->is_abandoned()) {
    job->abandoned = true;
    finish(*job, nullptr);
    return;
  }
  try {
    if (!batch_) {
      infer::BatchOptions options;
      options.cache_rows = options.reserved_rows = limits_.cache_rows;
      options.prefill_rows = limits_.prefill_rows;
      options.draft_tokens = limits_.draft_tokens;
      batch_.emplace(generator_.make_batch(options));
    }
    const ChatRequest& request = job->request;
    infer::GenerateOptions options;
    options.limit = request.max_tokens.value_or(limits_.max_tokens);
    options.sampling = request.sampling;
    options.top_logprobs = request.top_logprobs;
    const model::Sample sample = prompts_.write(request);
    at::Tensor maps;
    infer::Prompt prompt = generator_.encode_prompt(sample, options, request.attention ? &maps : nullptr);
    if (maps.defined()) job->listener->show_attention(prompts_.attention_of(sample.frames, maps));
    job->usage.prompt = generator_.require_room(sample.frames, sample.texts[0].tokens);
    for (int64_t answer = 0; answer < request.answers; ++answer) {
      auto running =
          std::make_shared<RunningAnswer>(RunningAnswer{job, answer, StreamingDetokenizer(tokenizer_, request.stops)});
      prompt.sampling.answer = static_cast<uint64_t>(answer);
      prompt.on_token = [this, running](const infer::GeneratedToken& token) { return take_token(*running, token); };
      running_.emplace(batch_->add(prompt), running);
      ++job->open;
    }
  } catch (const Error& error) {
    finish(*job, &error);
  }
}

// Before a request ends, so that who has its answer finds it counted.
void AnswerService::count_batch(int64_t steps) {
  std::lock_guard lock(lock_);
  counts_.steps += steps;
  counts_.cache = batch_->counts();
  counts_.drafts = batch_->draft_counts();
}

// Answers whose clients have left give their places to others, also where no token of theirs is near.
void AnswerService::cancel_abandoned() {
  for (auto running = running_.begin(); running != running_.end();) {
    const auto [number, answer] = *running;
    Job& job = *answer->job;
    if (!job.abandoned && !job.listener->is_abandoned()) {
      ++running;
      continue;
    }
    job.abandoned = true;
    batch_->cancel(number);
    count_batch(0);
    running = running_.erase(running);
    if (--job.open == 0) finish(job, nullptr);
  }
}

bool AnswerService::take_token(RunningAnswer& answer, const infer::GeneratedToken& token) {
  Job& job = *answer.job;
  if (token.logprobs) {
    const auto named = [&](int64_t id, double logprob) {
      TokenLogprob one{"", logprob, {}};
      try {
        one.token = tokenizer_.bytes_of(static_cast<TokenId>(id));
      } catch (const Error&) { // a row of the embedding that is no token
      }
      return one;
    };
    TokenLogprob shown = named(token.id, token.logprobs->chosen);
    for (const auto& [id, logprob] : token.logprobs->top) shown.top.push_back(named(id, logprob));
    job.listener->add_token(answer.number, shown);
  }
  const std::string piece = answer.text.add(static_cast<TokenId>(token.id));
  if (!piece.empty()) job.listener->add_text(answer.number, piece);
  return !answer.text.stopped();
}

void AnswerService::end(const infer::GeneratedAnswer& generated) {
  const auto running = running_.extract(generated.number).mapped();
  Job& job = *running->job;
  job.usage.completion += std::ssize(generated.tokens);
  job.usage.cached = std::max(job.usage.cached, generated.shared_rows);
  const std::string rest = running->text.finish();
  if (!rest.empty()) job.listener->add_text(running->number, rest);
  job.listener->end_answer(running->number, generated.ended || running->text.stopped() ? "stop" : "length");
  if (--job.open == 0) finish(job, nullptr);
}

void AnswerService::finish(Job& job, const Error* error) {
  {
    std::lock_guard lock(lock_);
    --counts_.answering;
    ++(error ? counts_.failed : job.abandoned ? counts_.abandoned : counts_.answered);
    counts_.prompt_tokens += job.usage.prompt;
    counts_.generated_tokens += job.usage.completion;
  }
  if (error)
    job.listener->fail(*error);
  else
    job.listener->complete(job.usage);
}

void AnswerService::fail_all(const Error& error) {
  batch_.reset();
  std::deque<std::shared_ptr<Job>> jobs;
  {
    std::lock_guard lock(lock_);
    jobs = std::exchange(waiting_, {});
    counts_.answering += std::exchange(counts_.waiting, 0);
  }
  for (auto& [number, answer] : std::exchange(running_, {}))
    if (std::exchange(answer->job->open, 0) > 0) jobs.push_back(answer->job);
  for (const auto& job : jobs) finish(*job, &error);
}

} // namespace fvlm::serve
