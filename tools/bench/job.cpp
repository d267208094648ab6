#include "bench/job.h"

#include "base/error.h"
#include "base/text.h"
#include "bench/question_pack.h"
#include "feed/staging.h"
#include "model/weights/visual_rows.h"
#include "objective/dpo/settings.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <set>
#include <utility>

namespace fvlm::bench {

Configuration configuration_named(const std::string& name) {
  const auto parts = split(name, ':');
  Configuration configuration{name, parts.front()};
  const auto& variants = configuration_variants;
  const std::set<std::string> how(parts.begin() + static_cast<std::ptrdiff_t>(std::min<size_t>(parts.size(), 2)),
                                  parts.end());
  configuration.recompute.decoder.light = how.contains("light");
  configuration.recompute.vision.light = how.contains("light") || how.contains("light-vision");
  configuration.recompute.vision.every = configuration.recompute.decoder.every = how.contains("checkpointing") ? 1 : 0;
  configuration.caches_teacher = how.contains("cached-teacher");
  configuration.stills = how.contains("stills");
  configuration.quantized = how.contains("qlora");
  configuration.lora = how.contains("lora") || configuration.quantized;
  const std::string number = parts.size() > 1 ? parts[1] : "";
  const bool knows = std::ranges::all_of(
      how, [&](const std::string& each) { return std::ranges::find(variants, each) != std::end(variants); });
  const auto end = std::from_chars(number.data(), number.data() + number.size(), configuration.samples);
  if (!knows || end.ec != std::errc() || end.ptr != number.data() + number.size() || configuration.samples < 1)
    throw Error(ErrorKind::usage, "'{}' is no configuration", name)
        .advise("SHAPE:SAMPLES, and :{} behind it, as in 135m:8", fmt::join(variants, ", :"));
  (void)shape_named(configuration.shape);
  return configuration;
}

namespace {

// The frames of each sample become one image, which is repeated.
void repeat_images(train::SyntheticPack& pack, int64_t elements) {
  int64_t images = 0;
  for (size_t i = 0; i < pack.samples.size(); ++i) {
    auto sample = std::make_shared<Sample>(*pack.samples[i]);
    sample->copies = std::max<int64_t>(sample->frames, 1);
    pack.host.samples[i].first_frame = std::exchange(images, images + sample->distinct_frames());
    pack.host.samples[i].sample = pack.samples[i] = std::move(sample);
  }
  pack.host.frame_count = images;
  pack.host.pixels = pack.host.pixels.first(static_cast<size_t>(images * elements));
}

} // namespace

Job job_of(const Configuration& configuration, const TrainingSetting& setting, int64_t frames, int64_t text,
           const std::string& reference, SyntheticModels& models, Registry& registry, at::Device device,
           int64_t packs) {
  const Shape& shape = shape_named(configuration.shape);
  if (configuration.stills) shape.require_whole_frames();
  Job job;
  job.name = configuration.name;
  job.reference = reference;
  job.is_quantized = configuration.quantized;
  job.plan = synthetic_plan(setting, shape.frame, shape.frames > 0 ? shape.frames : frames, text);
  job.model = configuration.quantized ? models.quantized(shape, registry) : models.of(shape);
  job.plan.model.vision = (job.model / "vision").string();
  job.plan.model.connector = shape.connector_config();
  if (configuration.lora) job.plan.model.adapters = {plan::Lora{.rank = lora_rank, .targets = {"all"}}};
  plan::Stage& stage = job.plan.stages.front();
  if (!shape.freeze.empty()) stage.freeze = shape.freeze;
  if (configuration.lora) stage.freeze = {"connector", "vision"};
  stage.activation_checkpointing = configuration.recompute;
  if (!reference.empty()) {
    objective::Dpo dpo;
    dpo.cache_reference = reference == "remembered";
    stage.objective = {dpo};
  }
  if (configuration.caches_teacher && !shape.question)
    throw Error(ErrorKind::usage, "no teacher reads its samples, so that none can be cached").at(job.name);
  if (shape.question) {
    if (!reference.empty()) throw Error(ErrorKind::usage, "its samples are no pairs of answers").at(job.name);
    stage.objective = question_objective(configuration.caches_teacher);
    stage.data.max_text_tokens = shape.question->prompt + shape.question->anchor + shape.question->answer;
  }
  const plan::VisualRows visual = visual_rows(job.plan.model);
  const auto size = stage.largest_sample(visual.per_frame);
  job.capacity = {configuration.samples * size.frames, configuration.samples * size.tokens};
  for (int64_t i = 0; i < packs; ++i) {
    const auto number = static_cast<uint64_t>(i);
    train::SyntheticPack& pack = job.packs.emplace_back(
        shape.question ? make_question_pack(*shape.question, visual, configuration.samples, shape.vocabulary(), number)
                       : train::make_synthetic_pack(stage, {.per_frame = visual.per_frame, .of_cells = visual.of_cells},
                                                    job.capacity, configuration.samples, shape.frame,
                                                    {shape.vocabulary()}, feed::staging_for(device), number));
    if (std::ssize(pack.samples) != configuration.samples)
      throw Error(ErrorKind::internal, "{} samples were made", pack.samples.size()).at(job.name);
    if (configuration.stills) repeat_images(pack, 3 * shape.frame * shape.frame);
    for (PackedSample& packed : pack.host.samples) packed.position += i * configuration.samples;
  }
  return job;
}

} // namespace fvlm::bench
