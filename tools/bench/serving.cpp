#include "bench/serving.h"

#include "base/clock.h"
#include "base/error.h"
#include "serve/chat_request.h"

#include <c10/core/InferenceMode.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <span>

namespace fvlm::bench {
namespace {

// Questions of another measurement have other numbers, so that nothing computed for one serves the next.
int64_t first_question(size_t measurement) {
  return static_cast<int64_t>(measurement) * 1'000'000;
}
// As many as are measured are asked before, which select plugins and capture graphs for the sizes that occur.
int64_t first_of_warm_up(size_t measurement) {
  return first_question(measurement) + 500'000;
}

std::vector<std::string> bodies_of(const LoadPrompts& prompts, int64_t first, int64_t count) {
  std::vector<std::string> bodies;
  for (int64_t i = 0; i < count; ++i) bodies.push_back(load_request(prompts, first + i));
  return bodies;
}

ServingReport::Quantiles quantiles_of(std::vector<double> values) {
  if (values.empty()) return {};
  std::ranges::sort(values);
  const auto at = [&](double share) {
    return values[static_cast<size_t>(std::ceil(share * static_cast<double>(values.size()))) - 1];
  };
  return {at(0.5), at(0.9), at(0.99)};
}

ServingReport::Row row_of(const std::vector<LoadResult>& results) {
  ServingReport::Row row;
  std::vector<double> first, token, whole;
  double begin = results.front().sent, end = 0;
  for (const LoadResult& result : results) {
    ++row.requests;
    if (!result.problem.empty()) {
      if (row.errors++ == 0) row.problem = result.problem;
      continue;
    }
    row.prompt_tokens += result.prompt;
    row.tokens += result.completion;
    begin = std::min(begin, result.sent);
    end = std::max(end, result.done);
    first.push_back(result.first - result.sent);
    whole.push_back(result.done - result.sent);
    if (result.completion > 1)
      token.push_back((result.done - result.first) / static_cast<double>(result.completion - 1));
  }
  row.seconds = end - begin;
  row.first = quantiles_of(std::move(first));
  row.token = quantiles_of(std::move(token));
  row.whole = quantiles_of(std::move(whole));
  return row;
}

nlohmann::ordered_json json_of(const ServingReport::Quantiles& seconds) {
  return {{"p50", seconds.p50}, {"p90", seconds.p90}, {"p99", seconds.p99}};
}

ServingTimes times_of(const HttpAddress& address) {
  const std::map<std::string, double> metrics = read_metrics(address);
  ServingTimes times;
  for (const char* work : {"waiting", "encoding", "reading", "reading_device", "decoding", "decoding_device"})
    times[fmt::format("{} seconds", work)] = metrics.at(fmt::format("fvlm_model_seconds_total{{work=\"{}\"}}", work));
  for (const char* thread : {"server", "prompts", "model", "delivery"})
    times[fmt::format("{} cpu seconds", thread)] =
        metrics.at(fmt::format("fvlm_cpu_seconds_total{{thread=\"{}\"}}", thread));
  times["steps"] = metrics.at("fvlm_steps_total");
  times["reading steps"] = metrics.at("fvlm_reading_steps_total");
  return times;
}

ServingTimes times_of(const infer::GenerationBatch& batch, double encoding) {
  const auto &reading = batch.reading_times(), &decoding = batch.decoding_times();
  return {{"encoding seconds", encoding},
          {"reading seconds", reading.seconds - reading.device_seconds},
          {"reading_device seconds", reading.device_seconds},
          {"decoding seconds", decoding.seconds - decoding.device_seconds},
          {"decoding_device seconds", decoding.device_seconds},
          {"steps", static_cast<double>(reading.steps + decoding.steps)},
          {"reading steps", static_cast<double>(reading.steps)}};
}

ServingTimes since(const ServingTimes& before, ServingTimes now) {
  for (auto& [name, value] : now) value -= before.at(name);
  return now;
}

struct Question {
  serve::WrittenPrompt prompt;
  infer::Sampling sampling;
};

std::vector<Question> write_questions(const serve::PromptWriter& writer, const LoadPrompts& prompts, int64_t first,
                                      int64_t count) {
  std::vector<Question> questions;
  for (const std::string& body : bodies_of(prompts, first, count)) {
    const serve::ChatRequest request = serve::parse_chat(body, serve::RequestLimits());
    questions.push_back({writer.write(request), request.sampling});
  }
  return questions;
}

// Encodes the frames of these questions together, as far as the server would, and adds the prompts.
void add_questions(infer::Generator& generator, infer::GenerationBatch& batch, std::span<Question> questions,
                   int64_t max_tokens) {
  const int64_t max_frames = generator.is_on_gpu() ? 64 : 1;
  for (size_t begin = 0; begin < questions.size();) {
    std::vector<model::Sample> samples;
    for (int64_t frames = 0; begin + samples.size() < questions.size();) {
      const model::Sample& sample = questions[begin + samples.size()].prompt.sample;
      frames += model::frames_of(sample.frames);
      if (!samples.empty() && frames > max_frames) break;
      samples.push_back(sample);
    }
    for (infer::Prompt& prompt : generator.encode_prompts(samples)) {
      prompt.max_tokens = std::min(prompt.max_tokens, max_tokens);
      prompt.sampling = questions[begin].sampling;
      prompt.visual_keys = std::move(questions[begin++].prompt.frame_keys);
      batch.add(std::move(prompt));
    }
  }
}

// Answers the questions, so many at a time. Others join once a quarter of them has ended. Returns how many tokens there
// are.
int64_t answer(infer::Generator& generator, infer::GenerationBatch& batch, std::vector<Question> questions,
               int64_t max_tokens, int64_t at_once, double& encoding) {
  int64_t tokens = 0, open = 0;
  size_t next = 0;
  do {
    const int64_t free = std::min(at_once - open, std::ssize(questions) - static_cast<int64_t>(next));
    if (free > 0 && 4 * (at_once - open) >= at_once) {
      const double start = steady_seconds();
      add_questions(generator, batch, std::span(questions).subspan(next, static_cast<size_t>(free)), max_tokens);
      encoding += steady_seconds() - start;
      next += static_cast<size_t>(free), open += free;
    }
    batch.step();
    for (const infer::GeneratedAnswer& one : batch.take_finished()) tokens += std::ssize(one.tokens), --open;
  } while (open > 0 || next < questions.size());
  return tokens;
}

} // namespace

int64_t ServingLoad::max_clients() const {
  return *std::ranges::max_element(clients);
}

int64_t ServingLoad::requests_for(int64_t at_once, double rate) const {
  if (requests > 0) return requests;
  return rate > 0 ? std::max<int64_t>(32, std::llround(10 * rate)) : 8 * at_once;
}

void check(const ServingLoad& load) {
  const LoadPrompts& prompts = load.prompts;
  if (prompts.prompt < 1 || prompts.answer < 1 || prompts.picture < 1 || load.requests < 0)
    throw Error(ErrorKind::usage, "--prompt, --answer, --picture and --requests: expected 1 or more");
  if (!(prompts.images >= 0 && prompts.images <= 1))
    throw Error(ErrorKind::usage, "--images: expected a share from 0 to 1, got {}", prompts.images);
  for (const int64_t clients : load.clients)
    if (clients < 1) throw Error(ErrorKind::usage, "--clients: expected 1 or more, got {}", clients);
  for (const auto* rates : {&load.rates, &load.rate_shares})
    for (const double rate : *rates)
      if (!(rate > 0)) throw Error(ErrorKind::usage, "--rate: expected more than 0, got {}", rate);
}

OfflineAnswers answer_offline(infer::Generator& generator, const serve::PromptWriter& prompts, const ServingLoad& load,
                              const Progress& progress) {
  const c10::InferenceMode without_autograd;
  OfflineAnswers offline;
  for (size_t i = 0; i < load.clients.size(); ++i) {
    const int64_t clients = load.clients[i];
    const std::string what = fmt::format("a batch, {} at a time", clients);
    progress(what, static_cast<int64_t>(i), std::ssize(load.clients));
    const int64_t count = load.requests_for(clients, 0);
    std::vector<Question> warm_up = write_questions(prompts, load.prompts, first_of_warm_up(i), count),
                          measured = write_questions(prompts, load.prompts, first_question(i), count);
    int64_t longest = 0;
    for (const auto* questions : {&warm_up, &measured})
      for (const auto& [prompt, sampling] : *questions)
        longest = std::max(longest, generator.require_room(prompt.sample));
    infer::BatchOptions options;
    const int64_t pages = (longest + load.prompts.answer) / options.page_rows + 3; // with one in reserve for each
    options.cache_rows = options.reserved_rows = clients * pages * options.page_rows;
    options.max_sequences = options.reserved_sequences = clients;
    offline.cache_rows = std::max(offline.cache_rows, options.cache_rows);
    infer::GenerationBatch batch = generator.make_batch(options);
    double encoding = 0;
    (void)answer(generator, batch, std::move(warm_up), load.prompts.answer, clients, encoding);
    const ServingTimes before = times_of(batch, encoding);
    const double start = steady_seconds();
    offline.tokens[clients] = answer(generator, batch, std::move(measured), load.prompts.answer, clients, encoding);
    offline.tokens_per_second[clients] = static_cast<double>(offline.tokens[clients]) / (steady_seconds() - start);
    offline.times[clients] = since(before, times_of(batch, encoding));
  }
  return offline;
}

void measure_serving(const HttpAddress& address, const ServingLoad& load, bool has_times, ServingReport& report,
                     const Progress& progress) {
  const int64_t clients = load.max_clients();
  const auto run = [&](int64_t count, const RequestTimes& arrivals) {
    const size_t measurement = report.rows.size();
    (void)run_load(address, bodies_of(load.prompts, first_of_warm_up(measurement), count), arrivals, progress);
    const std::vector<std::string> bodies = bodies_of(load.prompts, first_question(measurement), count);
    const ServingTimes before = has_times ? times_of(address) : ServingTimes();
    double clients_cpu = 0;
    ServingReport::Row row = row_of(run_load(address, bodies, arrivals, progress, &clients_cpu));
    if (has_times) row.times = since(before, times_of(address));
    if (has_times) row.times["clients cpu seconds"] = clients_cpu;
    return row;
  };
  double fastest = 0; // answered requests a second
  for (const int64_t at_once : load.clients) {
    ServingReport::Row row = run(load.requests_for(at_once, 0), {at_once, 0, 0});
    row.load = fmt::format("{} client{}", at_once, at_once == 1 ? "" : "s");
    row.clients = at_once;
    if (row.seconds > 0) fastest = std::max(fastest, static_cast<double>(row.requests - row.errors) / row.seconds);
    report.rows.push_back(std::move(row));
  }
  std::vector<double> rates = load.rates;
  for (const double share : load.rate_shares) rates.push_back(share * fastest);
  for (const double rate : rates) {
    ServingReport::Row row = run(load.requests_for(clients, rate), {0, rate, load.prompts.seed});
    row.load = fmt::format("{:.1f} a second", rate);
    row.rate = rate;
    report.rows.push_back(std::move(row));
  }
}

std::optional<double> ServingReport::share_of_offline(const Row& row) const {
  if (!offline || !offline->tokens_per_second.contains(row.clients)) return std::nullopt;
  return row.tokens_per_second() / offline->tokens_per_second.at(row.clients);
}

nlohmann::ordered_json ServingReport::json() const {
  nlohmann::ordered_json document{{"prompt", prompts.prompt},           {"answer", prompts.answer},
                                  {"images", prompts.images},           {"picture", prompts.picture},
                                  {"temperature", prompts.temperature}, {"seed", prompts.seed},
                                  {"ready_seconds", ready_seconds}};
  if (offline) document["cache_rows"] = offline->cache_rows;
  auto& all = document["rows"] = nlohmann::ordered_json::array();
  for (const Row& row : rows) {
    nlohmann::ordered_json one{{"load", row.load},
                               {"clients", row.clients},
                               {"rate", row.rate},
                               {"requests", row.requests},
                               {"errors", row.errors},
                               {"seconds", row.seconds},
                               {"prompt_tokens", row.prompt_tokens},
                               {"tokens", row.tokens},
                               {"tokens_per_second", row.tokens_per_second()},
                               {"first_token_seconds", json_of(row.first)},
                               {"token_seconds", json_of(row.token)},
                               {"seconds_each", json_of(row.whole)}};
    if (const auto share = share_of_offline(row)) {
      one["offline_tokens_per_second"] = offline->tokens_per_second.at(row.clients);
      one["of_offline"] = *share;
      one["offline_times"] = offline->times.at(row.clients);
    }
    if (!row.times.empty()) one["times"] = row.times;
    if (!row.problem.empty()) one["problem"] = row.problem;
    all.push_back(std::move(one));
  }
  return document;
}

} // namespace fvlm::bench
