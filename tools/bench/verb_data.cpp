// fvlm-engine bench data: measures the throughput of the data loader.
#include "base/error.h"
#include "base/file.h"
#include "base/log.h"
#include "base/scratch_folder.h"
#include "base/table.h"
#include "bench/data.h"
#include "bench/verb.h"
#include "bench/verb_peer.h"
#include "bench/verb_report.h"
#include "cli/plugin_options.h"
#include "cli/tensor_module.h"

#include <fmt/format.h>

namespace fvlm::cli {
namespace {

constexpr const char* data_peer = "tools/bench-data-peer";

void print_table(const bench::DataReport& report, const bench::DataRequest& request) {
  TextTable table({"set", "side", "samples/s", "frames/s", "best samples/s", "ratio"});
  const auto line = [&](const std::string& set, const char* who, const bench::DataSide& side,
                        const std::string& ratio) {
    const double frames = static_cast<double>(side.frames) / static_cast<double>(side.samples);
    table.row({set, who, fmt::format("{:.1f}", side.samples_per_second()),
               fmt::format("{:.1f}", frames * side.samples_per_second()), fmt::format("{:.1f}", side.best()), ratio});
  };
  for (const auto& row : report.rows) {
    line(row.set, "engine", row.engine, "");
    if (row.peer) line("", "peer", *row.peer, fmt::format("{:.2f}", row.ratio()));
  }
  fmt::print("{}\n{} rounds of {} samples per side, {} workers, frames of {} x {}\n", table.text(), request.turns,
             request.samples, request.workers, request.size, request.size);
  for (const auto& row : report.rows)
    if (row.pinned) fmt::print("{}: the engine's frames are in pinned memory\n", row.set);
}

} // namespace

int bench_data(Arguments arguments) {
  Options options(
      "bench data [--shards PATTERN --tokenizer DIR] [--samples N] [--workers N] [--json]",
      "Measure samples per second of reading shards as training does: decoded, resized, normalized and packed.\n"
      "The peer reads the same shards with webdataset, PIL and worker processes, alternating with the engine.\n"
      "ratio: the engine's rate over the peer's. Without --shards, images of 640 x 480 are generated, as JPEG\n"
      "and as PNG.",
      "bench data --workers 2");
  with_peer_option(with_plugin_options(options), data_peer)
      .repeated_value("shards", "PATTERN", "tar files to read (repeatable)")
      .value("tokenizer", "DIR", "folder of the tokenizer.json for their texts")
      .value("samples", "N", "samples per round; default 512")
      .value("turns", "N", "rounds per side; default 4")
      .value("workers", "N", "threads of the engine, processes of the peer; default 2")
      .value("device", "D", "cpu (default) or cuda: the engine then uses pinned memory for frames")
      .value("size", "N", "resize frames to N pixels per side; default 224")
      .flag("json", "print one JSON document on standard output");
  const auto parsed = options.parse(arguments);
  if (!parsed) return 0;
  bench::DataRequest request;
  request.samples = parsed->integer_or("samples", request.samples, 1);
  request.turns = parsed->integer_or("turns", request.turns, 1);
  request.workers = parsed->integer_or("workers", request.workers, 1);
  request.size = parsed->integer_or("size", request.size, 1);
  const std::string device = parsed->value_or("device", "cpu");
  initialize_device(device);
  request.device = at::Device(device);
  request.peer = peer_of(*parsed, data_peer);

  const ScratchFolder folder;
  if (const auto shards = parsed->values("shards"); !shards.empty()) {
    const auto tokenizer = parsed->value("tokenizer");
    if (!tokenizer) throw Error(ErrorKind::usage, "--shards needs --tokenizer");
    request.sets.push_back({shards.front(), shards, *tokenizer});
  } else {
    log_info("generating images in {}", folder.path().string());
    request.sets = bench::make_data_sets(program_folder() / "make-shapes", folder.path());
  }
  const auto registry = open_registry(*parsed);
  const auto report =
      with_progress([&](const auto& progress) { return bench::measure_data(request, *registry, progress); });
  return show(*parsed,
              {{"bench", "data"}, {"workers", request.workers}, {"size", request.size}, {"peer", request.peer}}, report,
              [&](const auto& shown) { print_table(shown, request); });
}

} // namespace fvlm::cli
