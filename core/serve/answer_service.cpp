#include "serve/answer_service.h"

#include "base/clock.h"
#include "base/log.h"
#include "base/task_thread.h"
#include "device/runtime.h"
#include "infer/token_table.h"
#include "ops/out_of_memory.h"
#include "serve/call_grammar.h"

#include <ATen/core/grad_mode.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <deque>
#include <functional>
#include <optional>
#include <utility>

namespace fvlm::serve {
namespace {

constexpr double max_patience = 0.04; // seconds in which a prompt that is written waits for others

// What failed that is the request's own matter: other requests go on.
std::optional<Error> tried(const std::function<void()>& work) {
  try {
    work();
    return {};
  } catch (const Error& error) {
    return error;
  } catch (const std::exception& error) {
    if (!ops::is_out_of_memory(error)) throw;
    return Error(ErrorKind::device, "the server's memory does not hold this request's pictures beside its other work")
        .advise("send fewer or smaller pictures");
  }
}

Error failure() {
  return Error(ErrorKind::internal, "the model failed while it answered; the server's log says why");
}

} // namespace

int64_t prompt_threads() {
  return std::clamp<int64_t>(std::thread::hardware_concurrency() / 2, 1, 8);
}

int64_t usual_tokens(const ServiceLimits& limits, int64_t prompt_rows) {
  constexpr int64_t least = 512;
  return limits.max_tokens.value_or(std::max(least, limits.cache_rows - prompt_rows));
}

AnswerService::AnswerService(infer::Generator& generator, const Tokenizer& tokenizer, const PromptWriter& prompts,
                             const ServiceLimits& limits, Start start)
    : generator_(generator), tokenizer_(tokenizer), prompts_(prompts), limits_(limits),
      delivery_(tokenizer, prompts, [this](AnswerJob& job, const Error* error) { finish(job, error); }),
      queue_(generator, prompts, prompt_threads(), [this](AnswerJob& job, const Error* error) { finish(job, error); }) {
  if (start == Start::prepared) try {
      prepare();
    } catch (const std::exception& error) {
      if (!ops::is_out_of_memory(error)) throw;
      const bool has_states = generator.carries_state();
      throw Error(ErrorKind::device, "memory ran out with a cache of {} rows of keys and values{}", limits.cache_rows,
                  has_states ? fmt::format(" and the states of {} answers", limits.sequences) : "")
          .advise("a smaller --cache-rows{} takes less", has_states ? " or --sequences" : "");
    }
  thread_ = start_thread([this] { work(); });
}

AnswerService::~AnswerService() {
  stop();
}

void AnswerService::stop() {
  if (!thread_.joinable()) return;
  stops_ = true;
  const std::vector<Job> left = queue_.stop();
  thread_.join();
  delivery_.stop();
  const Error stopped(ErrorKind::stopped, "the server stops");
  for (const Job& job : left) finish(*job, &stopped);
}

bool AnswerService::submit(std::vector<std::pair<ChatRequest, std::shared_ptr<AnswerListener>>> requests) {
  {
    std::lock_guard lock(lock_);
    if (stops_ || counts_.waiting + counts_.answering + std::ssize(requests) > limits_.requests) return false;
    counts_.waiting += std::ssize(requests);
    for (const auto& [request, listener] : requests) ++counts_.by_adapter[request.adapter];
  }
  for (auto& [request, listener] : requests)
    queue_.add(std::make_shared<AnswerJob>(AnswerJob{.request = std::move(request), .listener = std::move(listener)}));
  return true;
}

bool AnswerService::submit(ChatRequest request, std::shared_ptr<AnswerListener> listener) {
  std::vector<std::pair<ChatRequest, std::shared_ptr<AnswerListener>>> one;
  one.emplace_back(std::move(request), std::move(listener));
  return submit(std::move(one));
}

int64_t AnswerService::prompt_tokens(const ChatRequest& request) const {
  return generator_.require_room(prompts_.write(request).sample);
}

ServiceCounts AnswerService::counts() const {
  std::lock_guard lock(lock_);
  return counts_;
}

AnswerService::CpuSeconds AnswerService::cpu_seconds() {
  return {queue_.cpu_seconds(), fvlm::cpu_seconds(thread_), delivery_.cpu_seconds()};
}

void AnswerService::begin_batch() {
  infer::BatchOptions options;
  options.cache_rows = options.reserved_rows = limits_.cache_rows;
  options.max_sequences = options.reserved_sequences = limits_.sequences;
  options.prefill_rows = limits_.prefill_rows;
  options.draft_tokens = limits_.draft_tokens;
  options.outlives_long_prompts = true;
  batch_.emplace(generator_.make_batch(options));
}

// On a GPU few prompts and many, of few rows and many, each read twice: a pass is captured the second time. Those of
// the model and of each adapter, and of all of them together.
void AnswerService::prepare() {
  constexpr int64_t few = 16, many = 32, longest = 64;
  const c10::InferenceMode no_autograd;
  begin_batch();
  const auto& decoder = generator_.config().decoder;
  if (!generator_.is_on_gpu()) {
    for (size_t adapter = 0; adapter <= generator_.adapters(); ++adapter)
      batch_->add({.tokens = {0}, .adapter = adapter});
    (void)batch_->finish();
    return;
  }
  int64_t token = 0; // another one for each prompt, or they would share rows
  const size_t models = 1 + generator_.adapters(), kinds = models > 1 ? models + 1 : 1;
  const auto read_twice = [&](int64_t prompts, int64_t rows) {
    for (size_t time = 0; time < 2 * kinds; ++time) {
      const size_t kind = time / 2;
      for (int64_t i = 0; i < prompts; ++i)
        batch_->add({.tokens = std::vector<int64_t>(static_cast<size_t>(rows), token++ % decoder.vocab_size),
                     .adapter = kind < models ? kind : static_cast<size_t>(i) % models});
      (void)batch_->finish();
    }
  };
  const int64_t most_rows = std::min(longest, decoder.max_position_embeddings - 1);
  for (int64_t prompts = 1; prompts <= few; prompts *= 2) read_twice(prompts, most_rows);
  for (int64_t rows = 2; rows <= most_rows; rows *= 2) read_twice(many, rows);
}

void AnswerService::work() {
  const c10::InferenceMode no_autograd;
  if (device::Runtime* const gpu = device::runtime()) gpu->enter_thread(); // so that passes are captured
  while (!stops_) try {
      serve_once();
    } catch (const std::exception& error) { // out of memory, for example
      const auto* torch = dynamic_cast<const c10::Error*>(&error);
      log_error("a step failed, and with it all its requests: {}",
                torch ? torch->what_without_backtrace() : error.what());
      fail_running(failure());
    }
  fail_running(Error(ErrorKind::stopped, "the server stops"));
}

void AnswerService::serve_once() {
  const double start = steady_seconds();
  if (running_.empty()) queue_.wait();
  const double awake = steady_seconds();
  const bool joins = begin(take_prompts());
  count_times(awake - start, steady_seconds() - awake);
  cancel_abandoned();
  if (batch_) {
    count_batch(batch_->step() ? 1 : 0);
    for (const infer::GeneratedAnswer& generated : batch_->take_finished()) end(generated);
  }
  learn_joining_time(awake, joins);
  delivery_.send();
}

// From a step that began at `begin`. Shorter times count for more, since graphs that are captured and other processes
// only ever make a step longer.
void AnswerService::learn_joining_time(double begin, bool joins) {
  const auto learn = [](double& known, double seen) { known += (seen < known ? 0.3 : 0.03) * (seen - known); };
  if (joined_at_ && !joins) // the device is done with the prompts at the end of this step
    learn(joining_seconds_, std::clamp(steady_seconds() - *joined_at_ - 2 * continuing_seconds_, 0.0, max_patience));
  else if (!joined_at_ && !joins)
    learn(continuing_seconds_, std::min(steady_seconds() - begin, max_patience));
  joined_at_ = joins ? std::optional(begin) : std::nullopt;
}

// On a GPU, a pass that reads prompts and the encoding of their frames take longer than a captured pass that only
// continues answers, and not much longer for many prompts than for one. So prompts wait for others until they have
// waited as long, all together, as their joining holds up all answers. On a CPU each prompt takes its own time, in
// which no answer grows.
std::vector<AnswerService::Job> AnswerService::take_prompts() {
  if (!generator_.is_on_gpu()) return queue_.take(1, {});
  const double held_up = static_cast<double>(running_.size()) * joining_seconds_;
  return queue_.take(64, {held_up, max_patience});
}

// The prompts of these requests, with all their frames encoded together.
std::vector<infer::Prompt> AnswerService::encode(const std::vector<Job>& jobs) {
  std::vector<model::Sample> samples;
  for (const Job& job : jobs) samples.push_back(job->prompt.sample);
  at::Tensor maps;
  const bool shows_attention = jobs.size() == 1 && jobs[0]->request.attention;
  std::vector<infer::Prompt> prompts = generator_.encode_prompts(samples, shows_attention ? &maps : nullptr,
                                                                 generator_.encoder_of(jobs[0]->request.adapter));
  if (maps.defined()) delivery_.show_attention(jobs[0], maps.cpu());
  for (size_t i = 0; i < jobs.size(); ++i) {
    prompts[i].visual_keys = std::move(jobs[i]->prompt.frame_keys);
    prompts[i].adapter = jobs[i]->request.adapter;
  }
  return prompts;
}

// Returns whether there are any whose clients wait: pictures of others are not encoded.
bool AnswerService::begin(std::vector<Job> jobs) {
  std::erase_if(jobs, [this](const Job& job) {
    if (!job->listener->is_abandoned()) return false;
    job->abandoned = true;
    job->usage = {};
    delivery_.finish(job);
    return true;
  });
  if (jobs.empty()) return false;
  {
    std::lock_guard lock(lock_);
    counts_.waiting -= std::ssize(jobs), counts_.answering += std::ssize(jobs);
  }
  std::deque<std::vector<Job>> groups; // which are encoded together; attention is shown of one request at a time
  const auto encoder_of = [&](const Job& job) { return generator_.encoder_of(job->request.adapter); };
  for (Job& job : jobs) {
    job->begun = true;
    if (groups.empty() || job->request.attention || groups.back()[0]->request.attention ||
        encoder_of(job) != encoder_of(groups.back()[0]))
      groups.emplace_back();
    groups.back().push_back(std::move(job));
  }
  for (; !groups.empty(); groups.pop_front()) try {
      const std::vector<Job> group = groups.front();
      std::vector<infer::Prompt> prompts;
      if (const auto failed = tried([&] { prompts = encode(group); })) {
        if (group.size() == 1)
          delivery_.finish(group[0], *failed);
        else // each alone, so that one does not fail the others
          for (const Job& job : group) groups.push_back({job});
        continue;
      }
      for (size_t i = 0; i < prompts.size(); ++i)
        if (const auto failed = tried([&] { add(group[i], std::move(prompts[i])); })) fail(group[i], *failed);
    } catch (const std::exception&) {
      for (const auto& group : groups)
        for (const Job& job : group)
          if (job->open == 0) delivery_.finish(job, failure());
      throw;
    }
  return true;
}

void AnswerService::add(const Job& job, infer::Prompt prompt) {
  if (!job->request.attention) job->prompt.sample = {};
  if (!batch_) begin_batch();
  const ChatRequest& request = job->request;
  const int64_t usual = std::max(usual_tokens(limits_, job->usage.prompt), request.stop_rules.min_tokens),
                wanted = request.embedding ? 1 : std::max<int64_t>(1, request.max_tokens.value_or(usual));
  prompt.max_tokens = std::min(prompt.max_tokens, wanted);
  prompt.sampling = request.sampling;
  prompt.stop = request.stop_rules;
  prompt.top_logprobs = request.top_logprobs;
  if (request.form && !token_table_) token_table_ = infer::token_table_of(tokenizer_);
  if (job->prompt.calls && !call_table_) call_table_ = token_table_of_calls(tokenizer_, *job->prompt.tool_calls);
  try {
    for (int64_t answer = 0; answer < request.answers; ++answer) {
      std::optional<grammar::Call> call;
      if (job->prompt.calls) call = {*job->prompt.call_begin, recent_texts_.of(call_table_, job->prompt.calls)};
      if (request.form)
        prompt.constraint = std::make_shared<grammar::TokenConstraint>(
            recent_texts_.of(token_table_, request.form), prompts_.preface_of(job->prompt.thinking), std::move(call));
      auto running = std::make_shared<RunningAnswer>(job, answer, tokenizer_, prompts_.special());
      running->stopped = request.max_tokens == 0;
      prompt.sampling.answer = static_cast<uint64_t>(request.first_answer + answer);
      const bool echoes_logprobs = request.echo && request.top_logprobs;
      if (echoes_logprobs)
        prompt.on_scores = [this, running](std::vector<infer::GeneratedToken> tokens) {
          delivery_.echo(running, std::move(tokens));
        };
      prompt.on_token = [this, running](const infer::GeneratedToken& token) {
        delivery_.add_token(running, token);
        return !running->stopped;
      };
      if (request.embedding)
        prompt.on_embedding = [this, job](std::vector<float> hidden) { delivery_.embed(job, std::move(hidden)); };
      running_.emplace(batch_->add(prompt), running);
      if (request.echo && !echoes_logprobs) delivery_.echo(running, {});
      ++job->open;
    }
  } catch (const Error& error) { // of the first answer, as they differ in the draws alone
    fail(job, error);
  }
}

// With all its answers that have begun.
void AnswerService::fail(const Job& job, const Error& error) {
  std::erase_if(running_, [&](const auto& each) {
    const bool is_own = each.second->job == job;
    if (is_own) batch_->cancel(each.first);
    return is_own;
  });
  job->open = 0;
  delivery_.finish(job, error);
}

// Before a request ends, so that who has its answer finds it counted.
void AnswerService::count_batch(int64_t steps) {
  std::lock_guard lock(lock_);
  counts_.steps += steps;
  counts_.reading = batch_->reading_times();
  counts_.decoding = batch_->decoding_times();
  counts_.cache = batch_->counts();
  counts_.cache_bytes = batch_->cache_bytes();
  counts_.drafts = batch_->draft_counts();
}

void AnswerService::count_times(double waiting, double encoding) {
  std::lock_guard lock(lock_);
  counts_.waiting_seconds += waiting;
  counts_.encoding_seconds += encoding;
}

// Answers whose clients have left give their places to others, also where no token of theirs is near.
void AnswerService::cancel_abandoned() {
  for (auto running = running_.begin(); running != running_.end();) {
    const Job job = running->second->job;
    if (!job->abandoned && !job->listener->is_abandoned()) {
      ++running;
      continue;
    }
    job->abandoned = true;
    batch_->cancel(running->first);
    count_batch(0);
    running = running_.erase(running);
    if (--job->open == 0) delivery_.finish(job);
  }
}

void AnswerService::end(const infer::GeneratedAnswer& generated) {
  const auto found = running_.find(generated.number);
  if (found == running_.end()) return; // another answer to the request failed
  const auto running = found->second;
  const Job job = running->job;
  if (generated.lacks_memory)
    return fail(job, Error(ErrorKind::device, "the server's memory does not hold the keys and values of this request")
                         .advise("a shorter prompt, or fewer and smaller pictures, need less"));
  running_.erase(found);
  if (running->number == 0) job->usage.cached = generated.shared_rows; // the others share what this one computed
  std::optional<infer::GeneratedToken> end_token;
  if (job->request.echo && generated.ended && !generated.logprobs.empty())
    end_token = {generated.tokens.back(), generated.logprobs.back()};
  delivery_.end_answer(running, generated.ended, std::move(end_token));
  if (--job->open == 0) delivery_.finish(job);
}

void AnswerService::finish(AnswerJob& job, const Error* error) {
  if (std::exchange(job.over, true)) return;
  {
    std::lock_guard lock(lock_);
    --(job.begun ? counts_.answering : counts_.waiting);
    ++(error ? counts_.failed : job.abandoned ? counts_.abandoned : counts_.answered);
    counts_.prompt_tokens += job.usage.prompt;
    counts_.generated_tokens += job.usage.completion;
  }
  if (error)
    job.listener->fail(*error);
  else
    job.listener->complete(job.usage);
}

void AnswerService::fail_running(const Error& error) {
  batch_.reset();
  for (auto& [number, answer] : std::exchange(running_, {}))
    if (std::exchange(answer->job->open, 0) > 0) delivery_.finish(answer->job, error);
  delivery_.send();
}

} // namespace fvlm::serve
