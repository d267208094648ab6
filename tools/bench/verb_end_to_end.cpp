// fvlm-engine bench end-to-end: training from JPEGs in shards, beside the device's steps alone.
#include "base/scratch_folder.h"
#include "base/table.h"
#include "base/text.h"
#include "bench/end_to_end.h"
#include "bench/verb.h"
#include "bench/verb_report.h"
#include "bench/verb_training.h"
#include "cli/plugin_options.h"
#include "cli/progress.h"

#include <fmt/format.h>

#include <optional>

namespace fvlm::cli {
namespace {

void print_report(const bench::EndToEndReport& report, const bench::EndToEndRequest& request,
                  const bench::JpegShards& shards, const bench::MadeShards& data) {
  TextTable table({"", "steps", "samples/s", "MHz", "W", "of the device step", "waiting for data"});
  const auto line = [&](const char* side, size_t steps, double rate, const device::Clocks& clocks,
                        const std::string& share, const std::string& waiting) {
    std::vector<std::string> cells{side, fmt::format("{}", steps), fmt::format("{:.4g}", rate)};
    for (const std::string& cell : bench::clock_cells(clocks)) cells.push_back(cell);
    cells.insert(cells.end(), {share, waiting});
    table.row(cells);
  };
  line("device step, sustained", report.device.times.count(), report.device_rate(), report.device.clocks, "", "");
  line("end to end", static_cast<size_t>(report.whole.steps), report.rate(), report.whole_clocks,
       fmt::format("{:.1f} %", report.share_of_device() * 100), fmt::format("{:.1f} %", report.waiting() * 100));
  const int64_t jpegs = shards.samples * shards.pictures;
  fmt::print("{}\n{} of {} x {} pixels, {} each; a sample has {}{} and {} tokens; {} a step, {}\n", table.text(),
             counted(jpegs, "JPEG"), shards.width, shards.height,
             human_bytes(static_cast<uint64_t>(data.jpeg_bytes / jpegs)), counted(shards.pictures, "JPEG"),
             shards.pictures < request.frames ? fmt::format(", repeated to {} frames,", request.frames) : "",
             request.text, counted(report.batch, "sample"), counted(report.workers, "worker"));
}

} // namespace

int bench_end_to_end(Arguments arguments) {
  Options options(
      "bench end-to-end [--device D] [--shape NAME] [--batch N] [--workers N] [--data DIR] [--json]",
      "Train on JPEGs in tar shards as `train` does (read, decode, resize, pack, stage, step), beside the steps of\n"
      "the device alone on packs of the same shapes, decoded beforehand, in turns of the same run. The pictures\n"
      "are made first: random and smooth, 640 x 480, with captions of random words. of the device step: the rate\n"
      "end to end over the device's alone; the aim is 95 % with 64 samples a step and 16 cores on an H100. waiting\n"
      "for data: the share of the time for which no pack was ready. Clocks and power are of the second turn.",
      "bench end-to-end --device cuda --batch 64 --workers 15");
  with_training_options(options)
      .value("shape", "NAME", "tiny, quickstart, 135m (default), 360m or 1.7b")
      .value("batch", "N", "samples a step; default 64")
      .value("frames", "N", "frames per sample; default 8")
      .value("pictures", "N", "JPEGs per sample: 1 (default), which is repeated, or as many as frames")
      .value("text", "N", "tokens per sample; default 128")
      .value("workers", "N", "threads that decode; default: one per core but one")
      .value("seconds", "N", "measured time of each side; default 30")
      .value("samples", "N", "samples in the shards, which are read again and again; default 1024")
      .value("data", "DIR", "where the pictures are made, or lie from the last time; default: a temporary folder");
  const auto parsed = options.parse(arguments);
  if (!parsed) return 0;
  bench::EndToEndRequest request;
  request.shape = parsed->value_or("shape", request.shape);
  request.batch = parsed->integer_or("batch", request.batch);
  request.frames = parsed->integer_or("frames", request.frames);
  request.pictures = parsed->integer_or("pictures", request.pictures);
  request.text = parsed->integer_or("text", request.text);
  request.workers = parsed->integer_or("workers", request.workers);
  request.seconds = parsed->number_or("seconds", request.seconds);
  bench::JpegShards shards = request.shards();
  shards.samples = parsed->integer_or("samples", shards.samples, 1);
  read_training_options(*parsed, request);

  const auto registry = open_registry(*parsed);
  std::optional<ScratchFolder> scratch;
  std::filesystem::path folder = parsed->value_or("data", "");
  if (folder.empty()) folder = scratch.emplace() / "pictures";
  Progress making("making pictures");
  const bench::MadeShards data =
      bench::make_jpeg_shards(shards, folder, [&](int64_t done, int64_t total) { making.samples(done, total); });
  making.finish();
  const auto report = with_progress(
      [&](const auto& progress) { return bench::measure_end_to_end(request, data, *registry, progress); });
  return show(*parsed,
              {{"bench", "end-to-end"},
               {"device", request.device},
               {"shape", request.shape},
               {"frames", request.frames},
               {"text", request.text},
               {"samples", shards.samples},
               {"pictures", shards.pictures},
               {"jpeg_bytes", data.jpeg_bytes}},
              report, [&](const auto& shown) { print_report(shown, request, shards, data); });
}

} // namespace fvlm::cli
