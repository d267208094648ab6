#include "cli/batch_search.h"

#include "base/error.h"
#include "base/log.h"
#include "base/status_line.h"
#include "base/table.h"
#include "base/text.h"
#include "cli/plugin_options.h"
#include "data/media/video.h"
#include "data/stream/data_sizes.h"
#include "model/weights/visual_rows.h"
#include "train/find_batch.h"

#include <fmt/format.h>

#include <unistd.h>

namespace fvlm::cli {
namespace {

using train::FoundBatch;
using train::PackTry;

std::string bytes(int64_t amount) {
  return human_bytes(static_cast<uint64_t>(std::max<int64_t>(amount, 0)));
}

const char* name_of(PackTry::End end) {
  switch (end) {
  case PackTry::End::fits:
    return "fits";
  case PackTry::End::out_of_memory:
    return "out of memory";
  case PackTry::End::not_tried:
    return "not tried: estimate too large";
  }
  return "";
}

// The lines to copy into a recipe.
std::string recipe_lines(const PackTry& found) {
  std::string packing = found.size.frames > 0 ? fmt::format("frames = {}, ", found.size.frames) : "";
  packing += fmt::format("tokens = {}", found.size.rows);
  if (found.segments > 0) packing += fmt::format(", segments = {}", found.segments);
  return fmt::format("{}packing = {{ {} }},", found.batch > 0 ? fmt::format("batch = {}, ", found.batch) : "", packing);
}

double samples_per_second(const PackTry& one) {
  return static_cast<double>(one.samples) / one.seconds;
}

// The fastest of the tries that fit. Null: none fits.
const PackTry* fastest_of(const FoundBatch& found) {
  const PackTry* fastest = nullptr;
  for (const PackTry& one : found.tries)
    if (one.end == PackTry::End::fits && (!fastest || samples_per_second(one) > samples_per_second(*fastest)))
      fastest = &one;
  return fastest;
}

void print(const FoundBatch& found) {
  TextTable table({"frames", "tokens", "samples", "estimate", "peak", "s a step", "samples/s", ""});
  for (const PackTry& one : found.tries) {
    const bool fits = one.end == PackTry::End::fits, tried = one.end != PackTry::End::not_tried;
    table.row({grouped(one.size.frames), grouped(one.size.rows), tried ? grouped(one.samples) : "",
               bytes(one.estimated), tried ? bytes(one.peak) : "", fits ? fmt::format("{:.3g}", one.seconds) : "",
               fits ? fmt::format("{:.4g}", samples_per_second(one)) : "", name_of(one.end)});
  }
  fmt::print("stage {}\n{}", found.stage, table.text());
  for (const std::string& assumption : found.assumptions) fmt::print("{}\n", assumption);
  if (!found.best) {
    fmt::print("none of these fits; use activation_checkpointing, fewer frames or shorter texts\n");
    return;
  }
  fmt::print("{}, for the recipe:\n  {}\n",
             found.holds_step ? "the largest step fits in one pack" : "the largest that fits",
             recipe_lines(found.tries[*found.best]));
  if (const PackTry* fastest = fastest_of(found); fastest != &found.tries[*found.best])
    fmt::print("the fastest, {:.4g} samples/s:\n  {}\n", samples_per_second(*fastest), recipe_lines(*fastest));
}

Json json_of(const FoundBatch& found) {
  const auto pack = [](const PackTry& one) {
    Json size = {{"frames", one.size.frames}, {"tokens", one.size.rows}};
    if (one.segments > 0) size["segments"] = one.segments;
    return size;
  };
  Json document = {{"stage", found.stage}, {"tries", Json::array()}};
  for (const PackTry& one : found.tries) {
    Json line = {{"packing", pack(one)},
                 {"end", one.end == PackTry::End::fits            ? "fits"
                         : one.end == PackTry::End::out_of_memory ? "out_of_memory"
                                                                  : "not_tried"},
                 {"estimated_bytes", one.estimated},
                 {"memory_bytes", one.memory}};
    if (one.end != PackTry::End::not_tried) {
      line["samples"] = one.samples;
      line["peak_bytes"] = one.peak;
    }
    if (one.end == PackTry::End::fits) line["seconds"] = one.seconds;
    document["tries"].push_back(std::move(line));
  }
  if (found.best) {
    const PackTry& best = found.tries[*found.best];
    document["suggestion"] = {{"packing", pack(best)}};
    if (best.batch > 0) document["suggestion"]["batch"] = best.batch;
    document["holds_step"] = found.holds_step;
    const PackTry& fastest = *fastest_of(found);
    document["fastest"] = {{"packing", pack(fastest)}};
    if (fastest.batch > 0) document["fastest"]["batch"] = fastest.batch;
  }
  document["assumptions"] = found.assumptions;
  return document;
}

} // namespace

int search_batches(const plan::Plan& plan, const train::TrainRequest& request, Registry& registry, int64_t memory,
                   bool json) {
  StatusLine line(STDERR_FILENO);
  set_log_level(LogLevel::warning); // each attempt would log its choice of kernels
  train::FindBatchRequest search;
  search.device = request.device;
  search.memory = memory;
  search.progress = [&](const std::string& doing) { line.show(doing); };
  Json document = Json::array();
  bool all_fit = true;
  for (const plan::Stage& stage : plan.stages) {
    if (request.stage && stage.name != *request.stage) continue;
    line.show(stage.name + ": reading the data's sizes");
    const auto video = stage.data.has_frames() ? choose_video_decoder(registry, plan.kernels["video"]) : std::nullopt;
    const DataSizes data = measure_data_sizes(plan, stage, video ? &*video : nullptr, visual_rows(plan.model));
    FoundBatch found = train::find_batch(plan, data.stage, registry, search);
    found.assumptions.insert(found.assumptions.begin(), data.said);
    line.clear();
    all_fit = all_fit && found.best;
    if (json)
      document.push_back(json_of(found));
    else
      print(found);
  }
  if (json) fmt::print("{}", dump(document));
  return all_fit ? 0 : 1;
}

} // namespace fvlm::cli
