// The speed of generation: answers of equal length to prompts of equal length, many at once, by a synthetic model.
#pragma once
#include "bench/progress.h"
#include "model/execution.h"
#include "model/model.h"
#include "plugin/registry.h"

#include <nlohmann/json.hpp>

#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace fvlm::infer {
class GenerationBatch;
}

namespace fvlm::bench {

struct GenerationRequest {
  model::Execution execution;
  std::vector<std::string> shapes = {"135m"};
  std::vector<int64_t> batches = {1, 8, 32}; // prompts that are answered at once
  int64_t prompt = 72, answer = 128;         // tokens of each
  int64_t repeat = 3;                        // measured runs, of which the fastest counts
  std::string peer;                          // a command, see peer.h; empty: none
  std::string model;                         // a model directory, in place of the shapes
  std::string draft; // speculative decoding too, by a shape or a model directory that proposes tokens; empty: none
  int64_t draft_tokens = 4;
};

struct GenerationReport {
  struct Side {
    double first_seconds = 0; // until every prompt has its first token
    double seconds = 0;       // until every answer is complete
    int64_t peak_bytes = 0;   // on the device: weights, keys and values, and what passes need; 0: unknown
    std::string problem;      // it could not be measured
  };
  struct Row {
    std::string shape;
    int64_t batch = 0;
    Side engine;
    std::optional<Side> drafted; // the engine with drafts
    double accepted = 0;         // share of the drafts that were right
    std::optional<Side> peer;
    // The engine's tokens per second over the peer's, and with drafts over those without; above 1 the engine is faster,
    // and drafts are worth their time.
    std::optional<double> ratio() const;
    std::optional<double> draft_ratio() const;
  };
  int64_t prompt = 0, answer = 0;
  std::vector<Row> rows;

  // Of answers, the time of the prompt included; and of the tokens after the first one, without it.
  double tokens_a_second(const Row& row, const Side& side) const;
  double decoded_a_second(const Row& row, const Side& side) const;
  nlohmann::ordered_json json() const;
};

// Answers `count` prompts at once, in a few runs, of which the fastest counts. `at_end` is called while their keys and
// values are still there; peak_bytes is not set. draft_model: proposes tokens; null: none does.
GenerationReport::Side time_answers(const GenerationRequest& request, const model::Model& model, ops::Operations& ops,
                                    int64_t vocabulary, int64_t count, const model::Model* draft_model = nullptr,
                                    const std::function<void(const infer::GenerationBatch& batch)>& at_end = {});

// Throws Error(usage) for sizes that make no sense.
GenerationReport measure_generation(const GenerationRequest& request, Registry& registry, const Progress& progress);

} // namespace fvlm::bench
