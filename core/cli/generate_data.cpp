#include "cli/generate_data.h"

#include "base/clock.h"
#include "base/error.h"
#include "base/log.h"
#include "base/text.h"
#include "cli/adapter_options.h"
#include "cli/answer_file.h"
#include "cli/named_model.h"
#include "cli/plugin_options.h"
#include "cli/progress.h"
#include "cli/sample_requests.h"
#include "model/weights/resolve_model.h"
#include "serve/answer_service.h"

#include <fmt/format.h>

#include <condition_variable>
#include <deque>
#include <limits>
#include <mutex>
#include <set>
#include <string>
#include <utility>

namespace fvlm::cli {
namespace {

// Samples between the last line that is written and the newest request. PromptQueue bounds how many of them have
// decoded frames.
constexpr size_t most_ahead = 256;

// Wakes who waits for the next answer.
struct Completion {
  std::mutex lock;
  std::condition_variable changed;
};

// One answer, as it comes on the threads of an AnswerService.
class SampleAnswer final : public serve::AnswerListener {
 public:
  SampleAnswer(Completion& completion, std::string key, std::optional<std::string> expected)
      : completion_(completion), key_(std::move(key)), expected_(std::move(expected)) {}

  void add_thoughts(int64_t, const std::string& piece) override { thoughts_ += piece; }
  void add_text(int64_t, const std::string& piece) override { text_ += piece; }
  void add_call(int64_t, const ToolCall& call) override {
    calls_.push_back({{"name", call.name}, {"arguments", call.arguments}});
  }
  void end_answer(int64_t, const char* finish, const std::string&) override { finish_ = finish; }
  void complete(const serve::Usage& usage) override {
    Json fields = {{"answer", text_}};
    if (!thoughts_.empty()) fields["reasoning"] = thoughts_;
    if (!calls_.empty()) fields["tool_calls"] = calls_;
    if (expected_) fields["expected"] = *expected_;
    fields["finish_reason"] = finish_;
    fields["prompt_tokens"] = usage.prompt;
    fields["completion_tokens"] = usage.completion;
    tokens_ = usage.completion;
    end(std::move(fields));
  }
  void fail(const Error& error) override { end(failure(error.text())); }
  bool is_abandoned() const override { return false; }

  Json failure(const std::string& why) const {
    Json fields = {{"error", why}};
    if (expected_) fields["expected"] = *expected_;
    return fields;
  }
  void end(Json fields) {
    const std::lock_guard lock(completion_.lock);
    fields_ = std::move(fields);
    ended_ = true;
    completion_.changed.notify_one();
  }
  // Under the lock.
  bool ended() const { return ended_; }
  const std::string& key() const { return key_; }
  const Json& fields() const { return fields_; }
  int64_t tokens() const { return tokens_; }

 private:
  Completion& completion_;
  const std::string key_;
  const std::optional<std::string> expected_;
  std::string thoughts_, text_, finish_;
  Json calls_ = Json::array(), fields_;
  int64_t tokens_ = 0;
  bool ended_ = false;
};

serve::PromptSettings prompt_settings(const AnsweringModel& model) {
  MediaOptions media = model.input.media;
  media.video = model.videos ? &*model.videos : nullptr;
  serve::PromptSettings settings{media.preparation(), media.image_frames, model.input.system,
                                 model.input.chat_template};
  settings.pinned = model.generator.is_on_gpu();
  settings.videos = media;
  settings.most_pixels = std::numeric_limits<int64_t>::max(); // the files are the user's own
  return settings;
}

serve::ServiceLimits limits_of(const ParsedOptions& parsed, const infer::GenerateOptions& how) {
  serve::ServiceLimits limits;
  limits.requests = static_cast<int64_t>(most_ahead);
  limits.cache_rows = parsed.integer_or("cache-rows", limits.cache_rows, 1);
  limits.draft_tokens = how.draft_tokens;
  return limits;
}

// A model that answers, once a sample needs it.
struct Answering {
  Answering(const ParsedOptions& parsed, const infer::GenerateOptions& how)
      : model(parsed, "generate --data"), prompts(model.tokenizer, model.rows, prompt_settings(model)),
        service(use_adapter(parsed, model.generator), model.tokenizer, prompts, limits_of(parsed, how),
                serve::AnswerService::Start::prepared) {
    log_info("{} computes {}", model.folder.string(), model.execution.text());
    (void)prompts.chat(); // throws where the model has none
    model.generator.prepare_frames(model.input.media.image_size);
  }
  AnsweringModel model;
  serve::PromptWriter prompts;
  serve::AnswerService service;
};

// Whose answers a file has.
std::string name_of_model(const ParsedOptions& parsed) {
  const auto canonical = [](const std::filesystem::path& path) {
    return std::filesystem::weakly_canonical(path).string();
  };
  const auto adapter = parsed.value("adapter");
  return canonical(model_named(*parsed.value("MODEL"))) +
         (adapter ? " with " + canonical(resolve_model(*adapter)) : "");
}

// What they were given with: the options that can change an answer by more than rounding.
std::string options_of_answers(const ParsedOptions& parsed) {
  return parsed.text_without({"adapter", "answers", "bundled-only", "cache-rows", "data", "device", "draft", "dtype",
                              "json", "kernels", "lock", "plugin-dir", "root", "speculate", "verbose"});
}

class DataAnswers {
 public:
  DataAnswers(const ParsedOptions& parsed, const infer::GenerateOptions& how)
      : parsed_(parsed), how_(how), samples_(parsed),
        file_(*parsed.value("answers"), name_of_model(parsed), options_of_answers(parsed)) {}

  void run() {
    for (int64_t i = 0; i < samples_.size(); ++i) {
      SampleRequests::Opened sample = samples_.open(i);
      if (file_.has(sample.key) && !asked_.contains(sample.key)) {
        ++skipped_;
        continue;
      }
      write_until(most_ahead - 1);
      ask(sample);
    }
    write_until(0);
    progress_.finish();
  }
  int report();

 private:
  void ask(const SampleRequests::Opened& sample);
  void write_until(size_t most_waiting);
  void submit(const SampleRequests::Opened& sample);

  const ParsedOptions& parsed_;
  const infer::GenerateOptions& how_;
  SampleRequests samples_;
  AnswerFile file_;
  Progress progress_{"answering"};
  std::set<std::string> asked_; // keys of this call
  int64_t skipped_ = 0, written_ = 0, tokens_ = 0;
  double begin_ = 0, seconds_ = 0;
  Completion completion_;
  std::deque<std::shared_ptr<SampleAnswer>> waiting_; // in the order of the samples
  std::optional<Answering> answering_;                // whose threads end before what they tell
};

void DataAnswers::ask(const SampleRequests::Opened& sample) {
  const auto fail = [&](const std::string& why) {
    waiting_.push_back(std::make_shared<SampleAnswer>(completion_, sample.key, std::nullopt));
    waiting_.back()->end(waiting_.back()->failure(why));
  };
  if (!asked_.insert(sample.key).second) return fail("a sample before it has the same custom_id");
  if (sample.broken) return fail(*sample.broken);
  if (!answering_) {
    answering_.emplace(parsed_, how_);
    begin_ = steady_seconds();
  }
  try {
    submit(sample);
  } catch (const ReadError&) {
    throw;
  } catch (const Error& error) {
    fail(error.text());
  }
}

void DataAnswers::submit(const SampleRequests::Opened& sample) {
  SampleRequests::Request asked = samples_.request(sample, answering_->model);
  serve::ChatRequest& request = asked.request;
  request.sampling = how_.sampling;
  request.max_tokens = how_.limit;
  request.stop_rules.ignore_eos = how_.ignore_eos;
  request.form = how_.form;
  request.stops = parsed_.values("stop");
  request.shows_special_tokens |= parsed_.flag("special-tokens");
  request.spells_special_tokens = parsed_.flag("special-tokens");
  waiting_.push_back(std::make_shared<SampleAnswer>(completion_, sample.key, std::move(asked.expected)));
  if (!answering_->service.submit(std::move(request), waiting_.back()))
    throw Error(ErrorKind::internal, "more than {} samples wait for answers", most_ahead);
}

// Writes answers in the order of the samples, until no more than so many are missing.
void DataAnswers::write_until(size_t most_waiting) {
  std::unique_lock lock(completion_.lock);
  while (!waiting_.empty()) {
    const std::shared_ptr<SampleAnswer> first = waiting_.front();
    if (!first->ended()) {
      if (waiting_.size() <= most_waiting) return;
      completion_.changed.wait(lock, [&] { return first->ended(); });
    }
    waiting_.pop_front();
    lock.unlock();
    file_.append(first->key(), first->fields());
    tokens_ += first->tokens();
    seconds_ = steady_seconds() - begin_;
    progress_.samples(skipped_ + ++written_, samples_.size());
    lock.lock();
  }
}

int DataAnswers::report() {
  const std::string path = *parsed_.value("answers");
  if (file_.failed() > 0)
    throw Error(ErrorKind::data, "no answer to {} of {}; the first: {}", file_.failed(),
                counted(file_.lines(), "sample"), file_.first_error())
        .at(path)
        .advise("the others are answered; remove the lines with an error and repeat the command to ask these again");
  const double rate = seconds_ > 0 && answering_ ? static_cast<double>(tokens_) / seconds_ : 0;
  if (parsed_.flag("json"))
    fmt::print("{}", dump(Json{{"samples", samples_.size()},
                               {"answered", written_},
                               {"tokens", tokens_},
                               {"seconds", answering_ ? seconds_ : 0},
                               {"tokens_per_second", rate}}));
  else if (written_ == 0)
    log_info("{}: up to date", path);
  else
    log_info("{}: {}{}, {} in {:.2f} s: {:.1f} tokens/s", path, counted(written_, "answer"),
             skipped_ > 0 ? fmt::format(" besides {} that were there", skipped_) : "", counted(tokens_, "new token"),
             seconds_, rate);
  return 0;
}

} // namespace

Options& with_data_options(Options& options) {
  return with_sample_options(
      options
          .repeated_value("data", "FILE",
                          "ask every sample of .jsonl, .json, .tsv and .parquet files, folders and tars (repeatable)")
          .value("answers", "FILE.jsonl", "write the answers of --data into this file, or go on with it")
          .value("cache-rows", "N",
                 "with --data: rows of the cache of keys and values, for all answers together; "
                 "default 8192"));
}

int answer_data(const ParsedOptions& parsed, const infer::GenerateOptions& how) {
  DataAnswers answers(parsed, how);
  answers.run();
  return answers.report();
}

} // namespace fvlm::cli
