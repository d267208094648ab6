#include "bench/data.h"

#include "base/error.h"
#include "base/glob.h"
#include "bench/peer.h"
#include "train/stage_data.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <numeric>

namespace fvlm::bench {
namespace {

using Clock = std::chrono::steady_clock;
using Json = nlohmann::ordered_json;

constexpr const char* made_samples = "256";

// A plan of one stage that learns nothing: for its data.
plan::Plan plan_of(const DataSet& set, const DataRequest& request) {
  plan::Plan plan;
  plan.model.decoder = set.tokenizer.string();
  plan.model.image_size = request.size;
  plan.loader.workers = request.workers;
  plan::Source source;
  source.shards = set.shards;
  source.weight.points = {1};
  plan::Stage stage;
  stage.name = set.name;
  stage.data.sources = {source};
  stage.batch.samples = request.batch;
  stage.objective = {plan::NextToken{}};
  plan.stages = {stage};
  return plan;
}

void read(const train::StageData& data, int64_t samples, DataSide& side) {
  const auto started = Clock::now();
  const auto loader = data.loader(data.start());
  int64_t read = 0;
  while (read < samples) {
    const auto loaded = loader->next();
    if (!loaded) break;
    read += static_cast<int64_t>(loaded->pack.samples.size());
    side.frames += loaded->pack.frame_count;
  }
  side.seconds.push_back(std::chrono::duration<double>(Clock::now() - started).count());
  side.samples += read;
}

void ask(Peer& peer, int64_t samples, DataSide& side) {
  const auto answer = peer.ask(samples);
  try {
    side.seconds.push_back(answer.at("seconds").get<double>());
    side.samples += answer.at("samples").get<int64_t>();
    side.frames += answer.at("frames").get<int64_t>();
  } catch (const nlohmann::json::exception&) {
    peer.fail_at_answer("seconds, samples and frames");
  }
}

std::vector<std::string> peer_arguments(const DataSet& set, const DataRequest& request) {
  std::vector<std::string> arguments = {"--turns",
                                        "--size",
                                        std::to_string(request.size),
                                        "--workers",
                                        std::to_string(request.workers),
                                        "--batch",
                                        std::to_string(request.batch)};
  for (const auto& pattern : set.shards)
    for (const auto& file : match_files(pattern).files) arguments.push_back(file);
  return arguments;
}

Json side_json(const DataSide& side) {
  return {{"seconds", side.seconds},
          {"samples", side.samples},
          {"frames", side.frames},
          {"samples_per_second", side.samples_per_second()}};
}

} // namespace

double DataSide::samples_per_second() const {
  return static_cast<double>(samples) / std::accumulate(seconds.begin(), seconds.end(), 0.0);
}

double DataSide::best() const {
  return static_cast<double>(samples) / static_cast<double>(seconds.size()) /
         *std::min_element(seconds.begin(), seconds.end());
}

Json DataReport::json() const {
  Json all = Json::array();
  for (const Row& row : rows) {
    Json one{{"set", row.set}, {"samples_a_turn", row.samples_a_turn}, {"engine", side_json(row.engine)}};
    if (row.peer) {
      one["peer"] = side_json(*row.peer);
      one["ratio"] = row.ratio();
    }
    all.push_back(one);
  }
  return {{"rows", all}};
}

DataReport measure_data(const DataRequest& request, Registry& registry, const TurnProgress& progress) {
  DataReport report;
  for (const DataSet& set : request.sets) {
    DataReport::Row& row = report.rows.emplace_back();
    row.set = set.name;
    row.samples_a_turn = request.samples;
    const plan::Plan plan = plan_of(set, request);
    const train::StageData data(plan, plan.stages[0], registry, {});
    std::optional<Peer> peer;
    if (!request.peer.empty()) {
      peer.emplace(request.peer, peer_arguments(set, request));
      DataSide warm;
      ask(*peer, request.batch, warm);
      row.peer.emplace();
    }
    DataSide warm;
    read(data, request.batch, warm);
    for (int64_t turn = 0; turn < request.turns; ++turn) {
      read(data, request.samples, row.engine);
      if (peer) ask(*peer, request.samples, *row.peer);
      if (progress) progress(set.name, turn + 1, request.turns);
    }
  }
  return report;
}

std::vector<DataSet> make_data_sets(const std::filesystem::path& make_shapes, const std::filesystem::path& folder) {
  std::vector<DataSet> sets;
  for (const std::string format : {"jpeg", "png"}) {
    const auto out = folder / format;
    const std::string command =
        fmt::format("'{}' --out '{}' --size 640x480 --frames 2 --ground textured --format {} --samples captions={} "
                    "--shard-size 64 >/dev/null",
                    make_shapes.string(), out.string(), format, made_samples);
    if (std::system(command.c_str()) != 0)
      throw Error(ErrorKind::data, "the data could not be made").at(command).advise("name shards with --shards");
    sets.push_back({format + " 640x480", {(out / "captions/*.tar").string()}, out / "tokenizer"});
  }
  return sets;
}

} // namespace fvlm::bench
