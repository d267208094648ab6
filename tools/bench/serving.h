// The speed of `fvlm-engine serve`: questions that are streamed to many clients, beside the same questions answered by
// the engine alone, all together.
#pragma once
#include "bench/http_load.h"
#include "bench/load_prompts.h"
#include "bench/progress.h"
#include "infer/generator.h"
#include "serve/prompt_writer.h"

#include <nlohmann/json.hpp>

#include <map>
#include <optional>
#include <string>
#include <vector>

namespace fvlm::bench {

struct ServingLoad {
  LoadPrompts prompts;
  std::vector<int64_t> clients = {64}; // at a time; each a measurement
  // Requests a second, each a measurement. A share of 1 is as many as the most clients were answered.
  std::vector<double> rates, rate_shares;
  int64_t requests = 0; // of each measurement; 0: eight of each client, and with a rate 10 seconds of them

  int64_t max_clients() const;
  int64_t requests_for(int64_t clients, double rate) const;
};

// Throws Error(usage) for sizes that make no sense.
void check(const ServingLoad& load);

// Where the time of a measurement went, by names such as "encoding seconds": of the model's thread, which waits for
// prompts, encodes their frames, and does steps that read prompts or only continue answers ("device": of these, waiting
// for it); processor time of threads ("server cpu seconds"); and numbers of steps.
using ServingTimes = std::map<std::string, double>;

struct OfflineAnswers {
  std::map<int64_t, double> tokens_per_second; // by clients
  std::map<int64_t, int64_t> tokens;           // the same
  std::map<int64_t, ServingTimes> times;       // the same
  int64_t cache_rows = 0;                      // of keys and values, for the most clients' questions and their answers
};
// Answers the questions that clients ask, as a batch: as many at a time as there are clients, with prompts that are
// written and images that are decoded before.
OfflineAnswers answer_offline(infer::Generator& generator, const serve::PromptWriter& prompts, const ServingLoad& load,
                              const Progress& progress);

struct ServingReport {
  struct Quantiles {
    double p50 = 0, p90 = 0, p99 = 0; // seconds
  };
  struct Row {
    std::string load; // "64 clients", "120.0 a second"
    int64_t clients = 0;
    double rate = 0; // 0: none
    int64_t requests = 0, errors = 0, prompt_tokens = 0, tokens = 0;
    double seconds = 0;
    Quantiles first, token, whole; // until the first token; from one to the next; until the end
    std::string problem;           // of the first request that failed
    ServingTimes times;            // empty: of a server that was not started here
    double tokens_per_second() const { return seconds > 0 ? static_cast<double>(tokens) / seconds : 0; }
  };
  LoadPrompts prompts;
  std::optional<OfflineAnswers> offline;
  double ready_seconds = 0; // of a server that was started; 0: it ran already
  std::vector<Row> rows;

  // Of a row of clients: its tokens per second over those of the same questions offline.
  std::optional<double> share_of_offline(const Row& row) const;
  nlohmann::ordered_json json() const;
};

// Sends the load to a server, one measurement after the other, behind requests that warm it up. `has_times`: its
// /metrics say where its time goes.
void measure_serving(const HttpAddress& address, const ServingLoad& load, bool has_times, ServingReport& report,
                     const Progress& progress);

} // namespace fvlm::bench
