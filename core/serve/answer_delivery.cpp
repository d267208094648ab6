#include "serve/answer_delivery.h"

#include "base/task_thread.h"
#include "serve/tool_fields.h"

#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <iterator>
#include <utility>

namespace fvlm::serve {
namespace {

int64_t characters_in(const std::string& bytes) {
  return std::ranges::count_if(bytes, [](char byte) { return (byte & 0xC0) != 0x80; });
}

} // namespace

AnswerDelivery::AnswerDelivery(const Tokenizer& tokenizer, const PromptWriter& prompts, Finish finish)
    : tokenizer_(tokenizer), prompts_(prompts), finish_(std::move(finish)), thread_(start_thread([this] { work(); })) {}

AnswerDelivery::~AnswerDelivery() {
  stop();
}

void AnswerDelivery::stop() {
  if (!thread_.joinable()) return;
  {
    std::lock_guard lock(lock_);
    stops_ = true;
  }
  changed_.notify_one();
  thread_.join();
}

double AnswerDelivery::cpu_seconds() {
  return fvlm::cpu_seconds(thread_);
}

void AnswerDelivery::show_attention(std::shared_ptr<AnswerJob> job, at::Tensor maps) {
  Event& event = step_.emplace_back();
  event.job = std::move(job);
  event.attention = std::move(maps);
}

void AnswerDelivery::echo(std::shared_ptr<RunningAnswer> answer, std::vector<infer::GeneratedToken> tokens) {
  Event& event = step_.emplace_back();
  event.kind = Event::Kind::echo;
  event.answer = std::move(answer);
  event.tokens = std::move(tokens);
}

void AnswerDelivery::add_token(std::shared_ptr<RunningAnswer> answer, const infer::GeneratedToken& token) {
  Event& event = step_.emplace_back();
  event.kind = Event::Kind::token;
  event.answer = std::move(answer);
  event.tokens = {token};
}

void AnswerDelivery::embed(std::shared_ptr<AnswerJob> job, std::vector<float> hidden) {
  Event& event = step_.emplace_back();
  event.job = std::move(job);
  event.embedding = std::move(hidden);
}

void AnswerDelivery::end_answer(std::shared_ptr<RunningAnswer> answer, bool by_end_token,
                                std::optional<infer::GeneratedToken> end_token) {
  Event& event = step_.emplace_back();
  event.kind = Event::Kind::end;
  event.answer = std::move(answer);
  event.by_end_token = by_end_token;
  if (end_token) event.tokens = {std::move(*end_token)};
}

void AnswerDelivery::finish(std::shared_ptr<AnswerJob> job, std::optional<Error> error) {
  Event& event = step_.emplace_back();
  event.job = std::move(job);
  event.error = std::move(error);
}

void AnswerDelivery::send() {
  if (step_.empty()) return;
  {
    std::lock_guard lock(lock_);
    if (sent_.empty())
      std::swap(sent_, step_);
    else
      std::move(step_.begin(), step_.end(), std::back_inserter(sent_));
  }
  step_.clear();
  changed_.notify_one();
}

void AnswerDelivery::work() {
  const c10::InferenceMode no_autograd;
  for (std::vector<Event> events;; events.clear()) {
    {
      std::unique_lock lock(lock_);
      changed_.wait(lock, [this] { return stops_ || !sent_.empty(); });
      if (sent_.empty()) return;
      std::swap(events, sent_);
    }
    for (Event& event : events) deliver(event);
  }
}

void AnswerDelivery::deliver(Event& event) {
  switch (event.kind) {
  case Event::Kind::token:
    return deliver_token(*event.answer, event.tokens.front());
  case Event::Kind::echo:
    return deliver_echo(*event.answer, event.tokens);
  case Event::Kind::end:
    return deliver_end(*event.answer, event);
  case Event::Kind::other:
    break;
  }
  if (event.attention.defined())
    event.job->listener->show_attention(prompts_.attention_of(event.job->prompt.sample, event.attention));
  else if (!event.embedding.empty())
    event.job->listener->add_embedding(event.embedding);
  else
    finish_(*event.job, event.error ? &*event.error : nullptr);
}

void AnswerDelivery::deliver_end(RunningAnswer& answer, const Event& event) {
  AnswerJob& job = *answer.job;
  const bool is_echo_alone = job.request.max_tokens == 0;
  if (event.by_end_token && !answer.stopped) {
    ++job.usage.completion; // the end token, which is no text
    for (const infer::GeneratedToken& token : event.tokens) show_logprobs(answer, token);
  }
  if (!answer.stopped) {
    ThoughtReader::Piece last{"", answer.text.finish()};
    if (answer.thoughts) {
      hear(answer, answer.thoughts->add(last.text), false);
      last = answer.thoughts->finish();
      count_thoughts(answer, answer.thoughts->place(), true);
    }
    hear(answer, last, false);
    say(answer, answer.stops.finish());
  }
  const bool is_whole = !is_echo_alone && (event.by_end_token || answer.stopped);
  end_calls(answer);
  const bool is_call = is_whole && answer.called > 0;
  job.listener->end_answer(answer.number,
                           is_call    ? "tool_calls"
                           : is_whole ? "stop"
                                      : "length",
                           is_call || !is_whole ? "" : answer.stops.found_text());
}

// Passes on what is thought, and what is said up to a stop text.
void AnswerDelivery::hear(RunningAnswer& answer, const ThoughtReader::Piece& piece, bool may_stop) {
  const AnswerJob& job = *answer.job;
  if (!piece.thoughts.empty() && job.request.includes_thoughts)
    job.listener->add_thoughts(answer.number, piece.thoughts);
  if (piece.text.empty()) return;
  const std::string said = answer.stops.add(piece.text, may_stop);
  if (!said.empty()) say(answer, said);
  if (answer.stops.found()) answer.stopped = true;
}

// Of the newest token. Log-probabilities are those of what is said alone, without the tags and the white space around.
void AnswerDelivery::count_thoughts(RunningAnswer& answer, ThoughtReader::Place before, bool has_text) {
  using Place = ThoughtReader::Place;
  const Place place = answer.thoughts->place();
  if (before == Place::thoughts || place == Place::thoughts) {
    answer.job->usage.thoughts += answer.tokens - answer.thought_tokens;
    answer.thought_tokens = answer.tokens;
    answer.undecided.clear();
  } else if (place == Place::answer) {
    for (const TokenLogprob& token : answer.undecided) answer.job->listener->add_token(answer.number, token);
    answer.undecided.clear();
  } else if (place == Place::behind && has_text) {
    answer.undecided.clear();
  }
}

// Passes on what is said, and calls of tools.
void AnswerDelivery::say(RunningAnswer& answer, const std::string& piece) {
  AnswerJob& job = *answer.job;
  if (job.request.tools && job.request.tools->only) {
    answer.required += piece;
    return;
  }
  const std::string said = answer.calls && !piece.empty() ? answer.calls->add(piece) : piece;
  if (!said.empty()) job.listener->add_text(answer.number, said);
  if (answer.calls) call(answer, answer.calls->take_calls());
}

void AnswerDelivery::end_calls(RunningAnswer& answer) {
  AnswerJob& job = *answer.job;
  std::string said = answer.calls ? answer.calls->finish() : "";
  if (answer.calls) call(answer, answer.calls->take_calls());
  if (job.request.tools && job.request.tools->only) {
    const bool has_begun = !answer.thoughts || !answer.required.empty();
    const auto calls = has_begun ? required_calls(answer.required, *job.request.tools) : std::nullopt;
    if (calls) call(answer, *calls);
    if (!calls) said = answer.required; // cut off before it names a tool
  }
  if (!said.empty()) job.listener->add_text(answer.number, said);
}

// Where calls are to come one at a time, the first one ends the answer.
void AnswerDelivery::call(RunningAnswer& answer, const std::vector<ToolCall>& calls) {
  const bool parallel = answer.job->request.tools->parallel;
  for (const ToolCall& each : calls) {
    if (!parallel && answer.called > 0) return;
    answer.job->listener->add_call(answer.number, each);
    ++answer.called;
  }
  if (!parallel && answer.called > 0) answer.stopped = true;
}

TokenLogprob AnswerDelivery::named(int64_t id, double logprob) const {
  TokenLogprob one{"", logprob, 0, {}};
  try {
    one.token = tokenizer_.bytes_of(static_cast<TokenId>(id));
  } catch (const Error&) { // a row of the embedding that is no token
  }
  return one;
}

TokenLogprob AnswerDelivery::shown_logprobs(RunningAnswer& answer, const infer::GeneratedToken& token) const {
  TokenLogprob shown = named(token.id, 0);
  shown.logprob.reset();
  shown.offset = std::exchange(answer.characters, answer.characters + characters_in(shown.token));
  if (token.logprobs) {
    shown.logprob = token.logprobs->chosen;
    for (const auto& [id, logprob] : token.logprobs->top) shown.top.push_back(named(id, logprob));
  }
  return shown;
}

void AnswerDelivery::show_logprobs(RunningAnswer& answer, const infer::GeneratedToken& token) {
  answer.job->listener->add_token(answer.number, shown_logprobs(answer, token));
}

void AnswerDelivery::deliver_echo(RunningAnswer& answer, const std::vector<infer::GeneratedToken>& tokens) {
  const AnswerJob& job = *answer.job;
  if (job.request.top_logprobs) show_logprobs(answer, {.id = job.prompt.first_token});
  for (const infer::GeneratedToken& token : tokens) show_logprobs(answer, token);
  job.listener->add_text(answer.number, job.prompt.echo);
}

void AnswerDelivery::deliver_token(RunningAnswer& answer, const infer::GeneratedToken& token) {
  if (answer.stopped) return;
  AnswerJob& job = *answer.job;
  ++job.usage.completion, ++answer.tokens;
  const bool may_stop = answer.tokens > job.request.stop_rules.min_tokens;
  const std::string piece = answer.text.add(static_cast<TokenId>(token.id));
  if (!answer.thoughts) {
    if (token.logprobs) show_logprobs(answer, token);
    return hear(answer, {"", piece}, may_stop);
  }
  if (token.logprobs) answer.undecided.push_back(shown_logprobs(answer, token));
  const ThoughtReader::Place before = answer.thoughts->place();
  const ThoughtReader::Piece heard = answer.thoughts->add(piece);
  count_thoughts(answer, before, !piece.empty());
  hear(answer, heard, may_stop);
}

} // namespace fvlm::serve
