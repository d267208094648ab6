#include "bench/generation.h"

#include "base/clock.h"
#include "base/error.h"
#include "bench/peer.h"
#include "bench/training.h"
#include "infer/generation_batch.h"
#include "model/loading.h"
#include "train/memory.h"
#include "train/peak_memory.h"

#include <c10/core/InferenceMode.h>
#include <fmt/format.h>

#include <algorithm>
#include <limits>

namespace fvlm::bench {
namespace {

constexpr int64_t unlimited = std::numeric_limits<int64_t>::max();

void check(const GenerationRequest& request) {
  if (request.prompt < 1 || request.answer < 2)
    throw Error(ErrorKind::usage, "a prompt of {} and an answer of {} tokens: expected at least 1 and 2",
                request.prompt, request.answer);
  if (request.repeat < 1) throw Error(ErrorKind::usage, "{} measured runs: expected at least 1", request.repeat);
  if (!request.draft.empty() && request.draft_tokens < 1)
    throw Error(ErrorKind::usage, "{} drafts a step: expected at least 1", request.draft_tokens);
  for (const int64_t batch : request.batches)
    if (batch < 1) throw Error(ErrorKind::usage, "{} prompts at once: expected at least 1", batch);
}

// Each prompt begins differently, in each turn too, so that nothing computed for another one serves it.
std::vector<int64_t> prompt_tokens(int64_t number, int64_t length, int64_t vocabulary) {
  std::vector<int64_t> tokens;
  for (int64_t i = 0; i < length; ++i)
    tokens.push_back((number * 7919 + i * i * 31 + i * 17 + number * i) % vocabulary);
  return tokens;
}

// Seconds until every prompt has its first token, and until every answer is complete.
std::pair<double, double> answer(const GenerationRequest& request, infer::GenerationBatch& batch, int64_t vocabulary,
                                 int64_t count, int64_t first_number) {
  int64_t started = 0;
  double first = 0;
  for (int64_t i = 0; i < count; ++i) {
    infer::Prompt prompt;
    prompt.tokens = prompt_tokens(first_number + i, request.prompt, vocabulary);
    prompt.max_tokens = request.answer;
    prompt.on_token = [&, is_first = true](const infer::GeneratedToken&) mutable {
      if (std::exchange(is_first, false) && ++started == count) first = steady_seconds();
      return true;
    };
    batch.add(std::move(prompt));
  }
  const double begin = steady_seconds();
  const auto answers = batch.finish();
  const double end = steady_seconds();
  for (const auto& one : answers)
    if (std::ssize(one.tokens) != request.answer)
      throw Error(ErrorKind::internal, "an answer of {} tokens", one.tokens.size());
  return {first - begin, end - begin};
}

// A decoder, and batches of it.
class Engine {
 public:
  Engine(const GenerationRequest& request, const std::filesystem::path& folder, const std::filesystem::path& draft,
         Registry& registry)
      : request_(request), ops_(registry, request.execution.operations()), peak_(ops_.options().device, unlimited),
        model_(model::load_model(folder, request.execution.answering_arena())),
        vocabulary_(model_->config().decoder.vocab_size) {
    if (!draft.empty()) draft_model_ = model::load_model(draft, request.execution.answering_arena());
  }

  void measure(GenerationReport::Row& row) {
    row.engine = measure(row.batch, nullptr);
    if (!draft_model_) return;
    row.drafted = measure(row.batch, draft_model_.get());
    row.accepted =
        drafts_.proposed > 0 ? static_cast<double>(drafts_.accepted) / static_cast<double>(drafts_.proposed) : 0;
  }

 private:
  GenerationReport::Side measure(int64_t count, const model::Model* draft_model) {
    peak_.begin(unlimited);
    int64_t peak_bytes = 0;
    GenerationReport::Side side = time_answers(
        request_, *model_, ops_, vocabulary_, count, draft_model, [&](const infer::GenerationBatch& batch) {
          drafts_ = batch.draft_counts();
          peak_bytes = ops_.options().device.is_cuda() ? peak_.held() : peak_.peak();
        });
    side.peak_bytes = peak_bytes;
    peak_.give_back();
    return side;
  }

  const GenerationRequest& request_;
  ops::Operations ops_;
  train::PeakMemory peak_; // before the models, whose weights it counts
  std::unique_ptr<model::Model> model_, draft_model_;
  int64_t vocabulary_;
  infer::GenerationBatch::DraftCounts drafts_; // of the last measurement
};

// A model directory, or the synthetic model of a shape.
std::filesystem::path folder_of(SyntheticModels& models, const std::string& named) {
  return named.empty() || std::filesystem::is_directory(named) ? std::filesystem::path(named)
                                                               : models.of(shape_named(named));
}

double number_in(Peer& peer, const nlohmann::json& answer, const char* name) {
  const auto found = answer.find(name);
  if (found == answer.end() || !found->is_number()) peer.fail_with_answer(name);
  return found->get<double>();
}

GenerationReport::Side ask(Peer& peer, const GenerationRequest& request, int64_t count) {
  const nlohmann::json question{
      {"batch", count}, {"prompt", request.prompt}, {"answer", request.answer}, {"repeat", request.repeat}};
  const auto answer = peer.ask(question.dump());
  GenerationReport::Side side;
  if (const auto problem = answer.find("problem"); problem != answer.end()) {
    side.problem = problem->is_string() ? problem->get<std::string>() : problem->dump();
    return side;
  }
  side.first_seconds = number_in(peer, answer, "first_seconds");
  side.seconds = number_in(peer, answer, "seconds");
  side.peak_bytes = static_cast<int64_t>(number_in(peer, answer, "peak_bytes"));
  return side;
}

nlohmann::ordered_json json_of(const GenerationReport& report, const GenerationReport::Row& row,
                               const GenerationReport::Side& side) {
  if (!side.problem.empty()) return {{"problem", side.problem}};
  return {{"first_seconds", side.first_seconds},
          {"seconds", side.seconds},
          {"tokens_per_second", report.tokens_a_second(row, side)},
          {"decoded_per_second", report.decoded_a_second(row, side)},
          {"peak_bytes", side.peak_bytes}};
}

} // namespace

double GenerationReport::tokens_a_second(const Row& row, const Side& side) const {
  return static_cast<double>(row.batch * answer) / side.seconds;
}

double GenerationReport::decoded_a_second(const Row& row, const Side& side) const {
  return static_cast<double>(row.batch * (answer - 1)) / (side.seconds - side.first_seconds);
}

std::optional<double> GenerationReport::Row::ratio() const {
  if (!peer || !peer->problem.empty() || !engine.problem.empty()) return std::nullopt;
  return peer->seconds / engine.seconds;
}

std::optional<double> GenerationReport::Row::draft_ratio() const {
  if (!drafted) return std::nullopt;
  return engine.seconds / drafted->seconds;
}

nlohmann::ordered_json GenerationReport::json() const {
  nlohmann::ordered_json document{{"prompt", prompt}, {"answer", answer}};
  auto& all = document["rows"] = nlohmann::ordered_json::array();
  for (const Row& row : rows) {
    nlohmann::ordered_json one{{"shape", row.shape}, {"batch", row.batch}, {"engine", json_of(*this, row, row.engine)}};
    if (row.drafted) {
      one["drafted"] = json_of(*this, row, *row.drafted);
      one["accepted"] = row.accepted;
      one["draft_ratio"] = *row.draft_ratio();
    }
    if (row.peer) one["peer"] = json_of(*this, row, *row.peer);
    if (const auto ratio = row.ratio()) one["ratio"] = *ratio;
    all.push_back(std::move(one));
  }
  return document;
}

// The batch lives through all runs, as a server's does.
GenerationReport::Side time_answers(const GenerationRequest& request, const model::Model& model, ops::Operations& ops,
                                    int64_t vocabulary, int64_t count, const model::Model* draft_model,
                                    const std::function<void(const infer::GenerationBatch& batch)>& at_end) {
  infer::BatchOptions options;
  if (draft_model) options.draft_model = draft_model, options.draft_tokens = request.draft_tokens;
  options.cache_rows = options.reserved_rows = count * (request.prompt + request.answer + options.page_rows);
  options.max_sequences = options.reserved_sequences = count;
  infer::GenerationBatch batch(model, ops, {}, options);
  GenerationReport::Side side;
  constexpr int64_t warm_up = 2; // plugins are selected in the first one, graphs captured in the second
  for (int64_t turn = 0; turn < warm_up + request.repeat; ++turn) {
    const auto [first, all] = answer(request, batch, vocabulary, count, turn * count + 1);
    if (turn < warm_up) continue;
    side.first_seconds = turn == warm_up ? first : std::min(side.first_seconds, first);
    side.seconds = turn == warm_up ? all : std::min(side.seconds, all);
  }
  if (at_end) at_end(batch);
  return side;
}

GenerationReport measure_generation(const GenerationRequest& request, Registry& registry, const Progress& progress) {
  check(request);
  const c10::InferenceMode without_autograd;
  GenerationReport report{request.prompt, request.answer, {}};
  SyntheticModels models(DType::bf16); // as published models are
  const std::vector<std::string> names = request.model.empty() ? request.shapes : std::vector{request.model};
  const auto total = std::ssize(names) * std::ssize(request.batches);
  for (const std::string& name : names) {
    const auto folder = folder_of(models, name);
    const size_t begin = report.rows.size();
    {
      Engine engine(request, folder, folder_of(models, request.draft), registry);
      for (const int64_t batch : request.batches) {
        progress(fmt::format("{}, {} at once", name, batch), std::ssize(report.rows), total);
        auto& row = report.rows.emplace_back(GenerationReport::Row{name, batch, {}, {}, 0, {}});
        try {
          engine.measure(row);
        } catch (const std::exception& error) {
          if (!train::is_out_of_memory(error)) throw;
          row.engine.problem = "out of memory";
        }
      }
    }
    if (request.peer.empty()) continue;
    // After the engine, whose memory the peer may need.
    Peer peer(request.peer, {"--model", (folder / "decoder").string(), "--device", request.execution.device, "--dtype",
                             request.execution.dtype});
    for (size_t i = begin; i < report.rows.size(); ++i) {
      progress(fmt::format("{}, {} at once, the peer", name, report.rows[i].batch), static_cast<int64_t>(i), total);
      report.rows[i].peer = ask(peer, request, report.rows[i].batch);
    }
  }
  return report;
}

} // namespace fvlm::bench
