#include "bench/data.h"

#include "base/error.h"
#include "base/glob.h"
#include "bench/peer.h"
#include "objective/next_token/settings.h"
#include "train/stage_data.h"

#include <ATen/ops/from_blob.h>
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <numeric>
#include <thread>

namespace fvlm::bench {
namespace {

using Clock = std::chrono::steady_clock;
using Json = nlohmann::ordered_json;

constexpr const char* sample_count = "256";
constexpr int64_t max_frames = 8; // of a sample: capacity of the packs
constexpr size_t packs_ahead = 4; // batches to prefetch: as many as the peer

// A plan of one stage, of which only the data is used.
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
  stage.data.max_frames = max_frames;
  stage.packing.frames = request.batch * max_frames;
  const int64_t pack_bytes = *stage.packing.frames * 3 * request.size * request.size * 4;
  plan.loader.memory_mib = (static_cast<int64_t>(packs_ahead) * pack_bytes >> 20) + 1;
  stage.objective = {objective::NextToken()};
  plan.stages = {stage};
  return plan;
}

// The engine's side: one loader for all rounds.
class EngineLoader {
 public:
  explicit EngineLoader(const train::StageData& data) : loader_(data.loader(data.start())) {}

  // First discards, untimed, the samples that were prefetched before the round.
  void read(int64_t samples, DataSide& side) {
    for (size_t i = 0; i < packs_ahead; ++i) loader_->next();
    const auto started = Clock::now();
    int64_t read = 0;
    while (read < samples) {
      const auto loaded = loader_->next();
      if (!loaded) break;
      read += static_cast<int64_t>(loaded->pack.samples.size());
      for (const PackedSample& packed : loaded->pack.samples) side.frames += packed.sample->frames;
      if (std::byte* frames = loaded->pack.buffer.get())
        pinned_ = at::from_blob(frames, {1}, at::TensorOptions().dtype(at::kByte)).is_pinned();
    }
    side.seconds.push_back(std::chrono::duration<double>(Clock::now() - started).count());
    side.samples += read;
  }
  bool pinned() const { return pinned_; } // the frames that were read

 private:
  std::unique_ptr<DataLoader> loader_;
  bool pinned_ = false;
};

void ask(Peer& peer, int64_t samples, DataSide& side) {
  const auto answer = peer.ask(samples);
  try {
    side.seconds.push_back(answer.at("seconds").get<double>());
    side.samples += answer.at("samples").get<int64_t>();
    side.frames += answer.at("frames").get<int64_t>();
  } catch (const nlohmann::json::exception&) {
    peer.fail_with_answer("seconds, samples and frames");
  }
}

// Waits until the side has finished prefetching, which would take cores from the other side.
void settle(const DataSide& side, int64_t batch) {
  const double samples = 1.5 * static_cast<double>(static_cast<int64_t>(packs_ahead) * batch);
  std::this_thread::sleep_for(std::chrono::duration<double>(samples / side.samples_per_second()));
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
  return static_cast<double>(samples) / static_cast<double>(seconds.size()) / *std::ranges::min_element(seconds);
}

Json DataReport::json() const {
  Json all = Json::array();
  for (const Row& row : rows) {
    Json one{{"set", row.set},
             {"samples_a_turn", row.samples_a_turn},
             {"engine", side_json(row.engine)},
             {"pinned", row.pinned}};
    if (row.peer) {
      one["peer"] = side_json(*row.peer);
      one["ratio"] = row.ratio();
    }
    all.push_back(one);
  }
  return {{"rows", all}};
}

DataReport measure_data(const DataRequest& request, Registry& registry, const Progress& progress) {
  DataReport report;
  for (const DataSet& set : request.sets) {
    DataReport::Row& row = report.rows.emplace_back();
    row.set = set.name;
    row.samples_a_turn = request.samples;
    const plan::Plan plan = plan_of(set, request);
    const train::StageData data(plan, plan.stages[0], registry, {.device = request.device});
    std::optional<Peer> peer;
    if (!request.peer.empty()) {
      peer.emplace(request.peer, peer_arguments(set, request));
      DataSide warm;
      ask(*peer, request.batch, warm);
      settle(warm, request.batch);
      row.peer.emplace();
    }
    EngineLoader engine(data);
    for (int64_t turn = 0; turn < request.turns; ++turn) {
      engine.read(request.samples, row.engine);
      settle(row.engine, request.batch);
      if (peer) {
        ask(*peer, request.samples, *row.peer);
        settle(*row.peer, request.batch);
      }
      if (progress) progress(set.name, turn + 1, request.turns);
    }
    row.pinned = engine.pinned();
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
                    make_shapes.string(), out.string(), format, sample_count);
    if (std::system(command.c_str()) != 0)
      throw Error(ErrorKind::data, "the data could not be made").at(command).advise("name shards with --shards");
    sets.push_back({format + " 640x480", {(out / "captions/*.tar").string()}, out / "tokenizer"});
  }
  return sets;
}

} // namespace fvlm::bench
