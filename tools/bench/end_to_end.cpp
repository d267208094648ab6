#include "bench/end_to_end.h"

#include "base/error.h"
#include "base/parallel.h"
#include "feed/staging.h"
#include "model/execution.h"
#include "model/weights/visual_rows.h"
#include "ops/host_memory.h"
#include "train/stage_data.h"

#include <c10/core/InferenceMode.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>

namespace fvlm::bench {
namespace {

class EndToEnd {
 public:
  EndToEnd(const EndToEndRequest& request, const MadeShards& data, Registry& registry, const Progress& progress)
      : request_(request), progress_(progress), device_(model::device_named(request.device)),
        shape_(shape_named(request.shape)), model_(models_.of(shape_)), plan_(plan_of(data)),
        data_(plan_, plan_.stages.front(), registry, {.device = device_}),
        training_(plan_, registry, device_, model_, data_.batches().capacity, request.batch) {}

  EndToEndReport measure() {
    EndToEndReport report;
    report.batch = request_.batch;
    report.workers = *plan_.loader.workers;
    const auto loader = data_.loader(data_.start());
    std::vector<DeviceSteps::Pack> packs;
    for (int64_t i = 0; i < device_packs; ++i) packs.push_back(copy_of(next(*loader)));
    DeviceSteps warm(training_, packs);
    for (int64_t i = 0; i < warmup; ++i) (void)warm.step();
    StreamSteps stream(plan_, training_);
    for (int64_t turn = 0; turn < turns; ++turn) {
      DeviceSteps steps(training_, packs);
      report.device.clocks = clocks_during(
          device_, [&] { until_time_is_up("the device's steps", [&] { report.device.times.add(steps.step()); }); });
      // What was decoded during the device's turn.
      for (int64_t i = 0; i < packs_ahead; ++i) (void)next(*loader);
      report.whole_clocks = clocks_during(device_, [&] { report.whole.seconds += stream_turn(*loader, stream); });
    }
    const double seconds = report.whole.seconds;
    for (const StreamPart& step : stream.all) report.whole += step;
    report.whole.seconds = seconds;
    report.first_loss = stream.first_loss;
    report.last_loss = stream.last_loss;
    return report;
  }

 private:
  static constexpr int64_t packs_ahead = 4;  // that fit into the loader's memory
  static constexpr int64_t device_packs = 4; // that the device's own steps take in turn
  static constexpr int64_t warmup = 4, turns = 2;

  plan::Plan plan_of(const MadeShards& data) const {
    plan::Plan plan = synthetic_plan(request_, shape_.frame, request_.frames, request_.text);
    plan.model.vision = (model_ / "vision").string();
    plan.model.connector = shape_.connector_config();
    plan.model.decoder = data.tokenizer.string();
    plan.loader.workers = request_.workers > 0 ? request_.workers : std::max(1, threads_or_cores(0) - 1);
    plan::Stage& stage = plan.stages.front();
    plan::Mix& mix = stage.data;
    mix.sources.front().shards = data.shards;
    mix.sources.front().weight.points = {1};
    mix.replicate_image_frames = request_.pictures == 1 ? request_.frames : 1;
    mix.system.clear();
    mix.prompts = {{"default", ""}};
    const auto sample = stage.largest_sample(visual_rows(plan.model).per_frame);
    stage.batch.samples = request_.batch;
    stage.packing.frames = request_.batch * sample.frames;
    stage.packing.tokens.count = request_.batch * sample.tokens;
    const int64_t pack_bytes = *stage.packing.frames * 3 * shape_.frame * shape_.frame;
    plan.loader.memory_mib = (packs_ahead * pack_bytes >> 20) + 1;
    return plan;
  }

  // A whole step, as all samples are of one size.
  static LoadedPack next(DataLoader& loader) {
    auto loaded = loader.next();
    if (!loaded) throw Error(ErrorKind::internal, "the pictures have come to an end");
    if (!loaded->last || loaded->most_packs != 1)
      throw Error(ErrorKind::internal, "a step of equal samples did not fit into one pack");
    return std::move(*loaded);
  }

  // Out of the loader's memory.
  DeviceSteps::Pack copy_of(const LoadedPack& loaded) const {
    DeviceSteps::Pack copy{loaded.pack, train::counts_of(plan_.stages.front(), *loaded.of_step)};
    const auto pixels = loaded.pack.pixels;
    copy.host.buffer = feed::staging_for(device_)(pixels.size());
    std::memcpy(copy.host.buffer.get(), pixels.data(), pixels.size());
    copy.host.pixels = {reinterpret_cast<const uint8_t*>(copy.host.buffer.get()), pixels.size()};
    return copy;
  }

  // At least one step.
  template <class Step>
  void until_time_is_up(const char* what, const Step& step) const {
    const double wanted = request_.seconds / static_cast<double>(turns) * 1e3;
    const Stopwatch watch;
    double elapsed = 0;
    for (int64_t done = 0; done == 0 || elapsed < wanted; elapsed = watch.stop().wall) {
      step();
      ++done;
      const double expected = static_cast<double>(done) * wanted / std::max(watch.stop().wall, 1e-3);
      progress_(what, done, std::max<int64_t>(done, std::llround(expected)));
    }
  }

  // Returns its seconds, to the end of the last step.
  double stream_turn(DataLoader& loader, StreamSteps& stream) const {
    stream.pass_over();
    const Stopwatch watch;
    until_time_is_up("end to end", [&] { stream.take(next(loader)); });
    stream.read_all();
    return watch.stop().wall * 1e-3;
  }

  const EndToEndRequest& request_;
  const Progress& progress_;
  at::Device device_;
  const Shape& shape_;
  SyntheticModels models_;
  const std::filesystem::path& model_;
  plan::Plan plan_;
  train::StageData data_;
  Training training_;
};

} // namespace

JpegShards EndToEndRequest::shards() const {
  const Shape& of = shape_named(shape);
  if (of.question) throw Error(ErrorKind::usage, "its samples have no pictures").at(shape);
  of.require_whole_frames();
  if (of.frames > 0 && of.frames != frames)
    throw Error(ErrorKind::usage, "a sample of this model has {} frame, not {}", of.frames, frames)
        .at(shape)
        .advise("--frames {}", of.frames);
  if (pictures != 1 && pictures != frames)
    throw Error(ErrorKind::usage, "{} JPEGs for {} frames", pictures, frames)
        .advise("--pictures 1, which is repeated, or as many as --frames");
  if (batch < 1 || frames < 1 || workers < 0 || !std::isfinite(seconds) || seconds <= 0)
    throw Error(ErrorKind::usage,
                "expected --batch and --frames of 1 or more, --workers of 0 or more, --seconds above 0");
  constexpr int64_t min_text = 16; // a chat's own tokens are about ten
  if (text < min_text)
    throw Error(ErrorKind::usage, "--text: expected {} or more, as a chat has tokens of its own, got {}", min_text,
                text);
  return {.pictures = pictures, .text = text, .vocabulary = of.vocabulary()};
}

double EndToEndReport::waiting() const {
  const auto waited = whole.parts.find(PartTimes::waiting);
  return waited == whole.parts.end() ? 0 : waited->second / whole.seconds;
}

nlohmann::ordered_json EndToEndReport::json() const {
  nlohmann::ordered_json whole_json{{"steps", whole.steps},          {"samples", whole.samples},
                                    {"frames", whole.frames},        {"text_tokens", whole.tokens},
                                    {"seconds", whole.seconds},      {"samples_per_second", rate()},
                                    {"waiting_for_data", waiting()}, {"parts_s", whole.parts}};
  add_clocks(whole_clocks, whole_json);
  return {{"batch", batch},
          {"workers", workers},
          {"device_step", device.json(batch)},
          {"end_to_end", whole_json},
          {"share_of_device_step", share_of_device()},
          {"first_loss", first_loss},
          {"last_loss", last_loss}};
}

EndToEndReport measure_end_to_end(const EndToEndRequest& request, const MadeShards& data, Registry& registry,
                                  const Progress& progress) {
  const c10::InferenceMode without_autograd;
  ops::keep_freed_memory();
  return EndToEnd(request, data, registry, progress).measure();
}

} // namespace fvlm::bench
