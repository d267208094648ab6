#include "train/memory_packing.h"

#include "base/error.h"
#include "base/log.h"
#include "base/text.h"
#include "budget/frame_rows.h"
#include "data/media/video.h"
#include "model/weights/visual_rows.h"
#include "train/memory.h"
#include "train/step_memory.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cmath>

namespace fvlm::train {
namespace {

constexpr int64_t step_of_rows = 64, step_of_frames = 8;
constexpr int64_t most_rows = int64_t{1} << 20; // beyond which nothing gets faster
constexpr int64_t precision = 32; // the search ends when what fits and what does not are as near as a 32nd
constexpr int64_t percent = 90;   // of the free memory: the rest is for what holds no tensors

int64_t rounded_up(int64_t number, int64_t step) {
  return (number + step - 1) / step * step;
}

std::string bytes(int64_t amount) {
  return human_bytes(static_cast<uint64_t>(std::max<int64_t>(amount, 0)));
}

// Estimates for packs of a stage.
class PackChoice {
 public:
  PackChoice(const plan::Plan& plan, const plan::Stage& stage, const DataSizes& data,
             const ModelDescription& description, Registry& registry, const PackRequest& request)
      : plan_(plan), stage_(stage), data_(data), request_(request),
        allowed_(stage.largest_sample(budget::most_rows_per_frame(plan.model))),
        sample_(data.stage.largest_sample(budget::most_rows_per_frame(plan.model))),
        memory_(plan, data.stage, description, registry, request.device, first_of(request.ranks, request.zero)) {}

  budget::ChosenPack largest() {
    const auto [most, bound] = most_needed();
    budget::ChosenPack chosen = estimated(rounded_up(allowed_.tokens, step_of_rows));
    if (!fits(chosen)) refuse(chosen);
    int64_t too_large = 0; // 0: none is known
    while (too_large == 0 && chosen.rows < most) try_rows(std::min(2 * chosen.rows, most), chosen, too_large);
    const auto near = [&] { return std::max(step_of_rows, chosen.rows / precision); };
    while (too_large - chosen.rows > near())
      try_rows(rounded_up(chosen.rows + (too_large - chosen.rows) / 2, step_of_rows), chosen, too_large);
    if (too_large == 0) chosen.bound = bound;
    return chosen;
  }

  budget::ChosenPack estimated(int64_t rows, std::optional<int64_t> frames = {}) {
    budget::ChosenPack pack{frames.value_or(frames_for(rows)), rows, 0, request_.limit};
    const budget::Need need =
        memory_.of({pack.frames, pack.rows}, stage_.packing.segments.value_or(0), stage_.activation_checkpointing);
    // Replicas share the model's weights; each has gradients of its own.
    pack.estimated = need.peak + (request_.replicas - 1) * need.amounts[static_cast<size_t>(budget::Item::gradients)];
    // On a CPU, what training holds there besides comes out of the same memory.
    if (!request_.limit.by_user && request_.device == budget::Device::cpu)
      pack.estimated += budget::packs_in_flight(plan_, pack.frames) + budget::checkpoint_copy(need);
    return pack;
  }

  static bool fits(const budget::ChosenPack& pack) { return pack.estimated <= pack.limit.bytes; }

 private:
  void try_rows(int64_t rows, budget::ChosenPack& chosen, int64_t& too_large) {
    const budget::ChosenPack pack = estimated(rows);
    if (fits(pack))
      chosen = pack;
    else
      too_large = rows;
  }

  // In the proportion that samples have, so that frames and rows run out together; and any sample fits.
  int64_t frames_for(int64_t rows) const {
    if (stage_.packing.frames) return *stage_.packing.frames;
    if (allowed_.frames == 0) return 0;
    const auto samples = most_samples();
    if (samples && rows >= *samples * sample_.tokens) return std::max(*samples * sample_.frames, allowed_.frames);
    const int64_t frames = data_.seen
                               ? static_cast<int64_t>(std::ceil(static_cast<double>(rows) * data_.frames_per_row))
                               : rows / allowed_.tokens * allowed_.frames;
    return std::max(rounded_up(frames, step_of_frames), allowed_.frames);
  }

  // Of a pack: its rank's part of a step, or as many as the recipe allows.
  std::optional<int64_t> most_samples() const {
    const auto of_step = samples_of_step(), segments = stage_.packing.segments;
    return of_step && segments ? std::min(*of_step, *segments) : of_step ? of_step : segments;
  }
  std::optional<int64_t> samples_of_step() const {
    if (!stage_.batch.samples) return {};
    return (*stage_.batch.samples + request_.ranks - 1) / request_.ranks;
  }

  std::pair<int64_t, budget::ChosenPack::Bound> most_needed() const {
    using Bound = budget::ChosenPack::Bound;
    std::pair<int64_t, Bound> most{most_rows, Bound::largest};
    const auto limit = [&](int64_t rows, Bound bound) {
      rows = rounded_up(std::max(rows, allowed_.tokens), step_of_rows);
      if (rows < most.first) most = {rows, bound};
    };
    const plan::Batch& batch = stage_.batch;
    if (batch.tokens) limit(*batch.tokens, Bound::step);
    if (const auto samples = most_samples())
      limit(*samples * sample_.tokens, samples == samples_of_step() ? Bound::step : Bound::segments);
    if (batch.frames && data_.frames_per_row > 0)
      limit(static_cast<int64_t>(static_cast<double>(*batch.frames) / data_.frames_per_row), Bound::step);
    most.first = std::max(most.first, rounded_up(allowed_.tokens, step_of_rows));
    return most;
  }

  [[noreturn]] void refuse(const budget::ChosenPack& least) const {
    throw Error(ErrorKind::device,
                "packing.tokens = \"memory\": a pack of {} tokens, which the largest sample needs, takes {} by "
                "estimate, and the limit is {}",
                grouped(least.rows), bytes(least.estimated), request_.limit.said)
        .at("stage " + stage_.name)
        .advise("use activation_checkpointing, lower data.max_text_tokens or data.max_frames, or train on a larger "
                "machine; `fvlm-engine plan --budget` shows what takes how much");
  }

  const plan::Plan& plan_;
  const plan::Stage& stage_;
  const DataSizes& data_;
  const PackRequest& request_;
  plan::Stage::SampleSize allowed_, sample_; // the largest sample by the recipe, and of the data; or a row of documents
  StepMemory memory_;
};

} // namespace

budget::MemoryLimit memory_limit(budget::Device device, int64_t requested, int64_t processes) {
  if (requested > 0) return {requested, fmt::format("{} as --memory-mib says", bytes(requested)), true};
  const int64_t limit = free_memory(device != budget::Device::cpu) / processes / 100 * percent;
  const std::string shared = processes > 1 ? fmt::format(", divided by {} processes", processes) : "";
  return {limit, fmt::format("{}, {} % of the {} memory that is free{}", bytes(limit), percent,
                             device == budget::Device::cpu ? "CPU's" : "GPU's", shared)};
}

budget::ChosenPack choose_pack(const plan::Plan& plan, const plan::Stage& stage, const DataSizes& data,
                               const ModelDescription& description, Registry& registry, const PackRequest& request) {
  return PackChoice(plan, stage, data, description, registry, request).largest();
}

PackRequest MemoryPacking::request() const {
  const int64_t processes = run_.device.is_cpu() ? ranks_.on_this_machine() : 1;
  const budget::MemoryLimit own = memory_limit(device(), run_.memory, processes);
  budget::MemoryLimit least = own;
  for (const std::string& text : ranks_.gather(nlohmann::json{own.bytes, own.said}.dump())) {
    const auto other = nlohmann::json::parse(text);
    if (other[0].get<int64_t>() < least.bytes)
      least = {other[0].get<int64_t>(), other[1].get<std::string>(), own.by_user};
  }
  if (ranks_.are_several()) least.said += fmt::format(", the least of {} ranks", ranks_.count());
  return {device(), least, ranks_.data_count(), run_.zero, run_.replicas};
}

DataSizes MemoryPacking::sizes_of(const plan::Stage& stage) const {
  const auto video = stage.data.has_frames() ? choose_video_decoder(registry_, plan_.kernels["video"]) : std::nullopt;
  return measure_data_sizes(plan_, stage, video ? &*video : nullptr, visual_rows(plan_.model));
}

plan::Stage MemoryPacking::with_pack(const plan::Stage& stage, std::map<std::string, RunRecord::Pack>& packs,
                                     bool keeps) const {
  if (!stage.packing.tokens.fill_memory) return stage;
  ranks_.enter("choosing the size of packs", stage.name);
  const PackRequest request = this->request();
  RunRecord::Pack pack;
  if (ranks_.is_first()) {
    const auto known = packs.find(stage.name);
    pack = keeps && known != packs.end() ? kept(stage, known->second, request) : chosen(stage, request);
  }
  const auto numbers = nlohmann::json::parse(ranks_.from_first(nlohmann::json{pack.tokens, pack.frames}.dump()));
  pack = {numbers[0].get<int64_t>(), numbers[1].get<int64_t>()};
  packs[stage.name] = pack;
  plan::Stage counted = stage;
  counted.packing.tokens = {pack.tokens};
  if (pack.frames > 0) counted.packing.frames = pack.frames;
  return counted;
}

RunRecord::Pack MemoryPacking::kept(const plan::Stage& stage, const RunRecord::Pack& pack,
                                    const PackRequest& request) const {
  const auto largest = stage.largest_sample(budget::most_rows_per_frame(plan_.model));
  if (pack.tokens < largest.tokens || pack.frames < largest.frames) {
    log_warning("stage {}: its packs of {} tokens do not hold a sample of the changed plan", stage.name,
                grouped(pack.tokens));
    return chosen(stage, request);
  }
  const DataSizes data = sizes_of(stage);
  PackChoice choice(plan_, stage, data, description_, registry_, request);
  const budget::ChosenPack now = choice.estimated(pack.tokens, pack.frames);
  if (PackChoice::fits(now))
    log_info("stage {}: packs of {} tokens, as when the run began (packing.tokens = \"memory\"); estimated {}, the "
             "limit is {}",
             stage.name, grouped(pack.tokens), bytes(now.estimated), request.limit.said);
  else
    log_warning("stage {}: the run began with packs of {} tokens, which no longer fit: estimated {}, the limit is {}\n"
                "  they are kept, since others give other bits, and divided where memory runs out; free memory, or "
                "begin anew with --run-dir",
                stage.name, grouped(pack.tokens), bytes(now.estimated), request.limit.said);
  return pack;
}

RunRecord::Pack MemoryPacking::chosen(const plan::Stage& stage, const PackRequest& request) const {
  const budget::ChosenPack pack = choose_pack(plan_, stage, sizes_of(stage), description_, registry_, request);
  log_info("stage {}: {}", stage.name, budget::chosen_text(pack));
  return {pack.rows, pack.frames};
}

} // namespace fvlm::train
