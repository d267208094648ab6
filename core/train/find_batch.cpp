#include "train/find_batch.h"

#include "base/clock.h"
#include "base/error.h"
#include "base/text.h"
#include "budget/frame_rows.h"
#include "budget/stage_budget.h"
#include "model/weights/visual_rows.h"
#include "ops/host_memory.h"
#include "train/initial_model.h"
#include "train/memory.h"
#include "train/peak_memory.h"
#include "train/quantized_weights.h"
#include "train/stage_model.h"
#include "train/step_memory.h"
#include "train/synthetic_pack.h"

#include <c10/core/InferenceMode.h>
#include <fmt/format.h>

#include <algorithm>

namespace fvlm::train {
namespace {

constexpr double spared = 0.1;    // of the machine's memory, for what holds no tensors
constexpr double certainly = 1.1; // so far above the memory an estimate does not err
constexpr double long_step = 10;  // seconds: its first run is timed, and there is no second
constexpr int64_t most_doublings = 30;

class Search {
 public:
  Search(const plan::Plan& plan, const plan::Stage& stage, Registry& registry, const FindBatchRequest& request)
      : plan_(plan), stage_(stage), rows_per_frame_(budget::most_rows_per_frame(plan.model)), registry_(registry),
        request_(request), description_(describe(plan)),
        available_(request.memory > 0 ? request.memory : available(request.device)) {
    found_.stage = stage.name;
    whole_ = budget::capacity_of(stage, rows_per_frame_, found_.assumptions);
    const auto largest = stage.largest_sample(rows_per_frame_);
    units_ = most_samples(whole_.frames, whole_.rows);
    most_units_ = units_ << most_doublings;
    const auto batch = stage.batch.samples;
    if (!batch) return;
    // A pack that is the whole step grows with it. Any other may hold several steps, or a part of one, and the batch
    // stays as it is.
    if (stage.packing.segments == batch)
      found_.batch = batch;
    else
      most_units_ = std::max(units_, units_for(*batch * largest.frames, *batch * largest.tokens));
  }

  FoundBatch run() {
    replicas_ = request_.replicas.value_or(choose_replicas(description_, request_.device));
    PeakMemory peak(request_.device, available_);
    StageModel made = make_model_and_optimizer();
    if (stage_.quantization_aware) {
      quantized_ = std::make_unique<QuantizedWeights>(plan_, registry_, made.model->parameters(), request_.device);
      quantized_->quantize();
    }
    int64_t fits = 0, too_large = 0; // 0: none is known
    for (int64_t units = units_; too_large == 0 && units > fits; units = std::min(2 * units, most_units_))
      (try_pack(units, made, peak) ? fits : too_large) = units;
    const auto near = [&] {
      return std::max<int64_t>(1, static_cast<int64_t>(static_cast<double>(fits) * request_.precision));
    };
    while (too_large > 0 && too_large - fits > near()) {
      const int64_t middle = fits + (too_large - fits) / 2;
      (try_pack(middle, made, peak) ? fits : too_large) = middle;
    }
    found_.holds_step = too_large == 0 && !found_.batch;
    return std::move(found_);
  }

 private:
  static int64_t available(at::Device device) {
    const int64_t free = free_memory(!device.is_cpu());
    return device.is_cpu() ? static_cast<int64_t>(static_cast<double>(free) * (1 - spared)) : free;
  }

  // A pack of so many units holds as many samples that are as large as any.
  int64_t most_samples(int64_t frames, int64_t rows) const {
    const auto largest = stage_.largest_sample(rows_per_frame_);
    int64_t samples = rows / largest.tokens;
    if (largest.frames > 0) samples = std::min(samples, frames / largest.frames);
    return std::max<int64_t>(samples, 1);
  }
  int64_t units_for(int64_t frames, int64_t rows) const {
    const auto units = [this](int64_t wanted, int64_t whole) {
      return whole > 0 ? (wanted * units_ + whole - 1) / whole : 0;
    };
    return std::max(units(frames, whole_.frames), units(rows, whole_.rows));
  }
  int64_t scaled(int64_t whole, int64_t units) const { return whole * units / units_; }

  StageModel make_model_and_optimizer() {
    try {
      const MakeModel begin = [&](const model::ArenaOptions& options) {
        return make_model(description_, static_cast<uint64_t>(plan_.seed), options);
      };
      return make_stage_model(plan_, stage_, registry_, request_.device, begin, begin);
    } catch (const std::exception& error) {
      if (!is_out_of_memory(error)) throw;
      throw Error(ErrorKind::device, "the memory, {}, does not hold the model and its optimizer",
                  human_bytes(static_cast<uint64_t>(available_)))
          .at("stage " + stage_.name)
          .advise("freeze groups, or train on a larger machine; `fvlm-engine plan` shows what takes how much");
    }
  }

  budget::Need estimate(const PackTry& now) const {
    const auto device = request_.device.is_cpu() ? budget::Device::cpu : budget::Device::cuda;
    return StepMemory(plan_, stage_, description_, registry_, device)
        .of(now.size, now.segments, stage_.activation_checkpointing);
  }

  bool try_pack(int64_t units, StageModel& model, PeakMemory& peak) {
    PackTry& now = found_.tries.emplace_back();
    now.size = {scaled(whole_.frames, units), scaled(whole_.rows, units)};
    if (const auto segments = stage_.packing.segments) now.segments = std::max<int64_t>(1, scaled(*segments, units));
    if (found_.batch) now.batch = std::max<int64_t>(1, scaled(*found_.batch, units));
    const auto need = estimate(now);
    now.estimated = need.peak;
    now.memory = available_;
    if (request_.memory == 0 && request_.device.is_cpu()) // what training has there besides
      now.memory -= budget::packs_in_flight(plan_, now.size.frames) + budget::checkpoint_copy(need);
    if (static_cast<double>(now.estimated) <= certainly * static_cast<double>(now.memory)) {
      if (request_.progress)
        request_.progress(fmt::format("{}: a pack of {} frames and {} tokens, about {}", stage_.name, now.size.frames,
                                      now.size.rows, human_bytes(static_cast<uint64_t>(now.estimated))));
      peak.begin(now.memory);
      now.end = PackTry::End::fits;
      try {
        run_steps(now, model);
      } catch (const std::exception& error) {
        if (!is_out_of_memory(error)) throw;
        now.end = PackTry::End::out_of_memory;
      }
      now.peak = peak.peak();
      if (now.peak > now.memory) now.end = PackTry::End::out_of_memory; // a GPU gives more than was asked for
      peak.give_back();
    }
    if (now.end != PackTry::End::fits) return false;
    found_.best = found_.tries.size() - 1;
    return true;
  }

  void run_steps(PackTry& now, StageModel& made) {
    const auto operations = make_operations(plan_, registry_, request_.device);
    const SyntheticPack pack =
        make_synthetic_pack(stage_, visual_rows(plan_.model), now.size, now.segments, plan_.model.image_size,
                            description_.vocabulary_sizes(), allocate_host, 0, rows_per_frame_);
    const StepCounts counts = counts_of(stage_, pack.samples);
    const Order order = Order::once({counts.samples});
    const Frozen frozen = with_empty_caches(made.frozen, stage_, *made.model, order, pack.host);
    ThreadReplicas replicas(plan_, stage_, *made.model, *operations, registry_,
                            max_capacity_of(plan_, stage_, now.size, now.segments), frozen, replicas_);
    now.samples = counts.samples;
    for (int run = 0; run < 2 && (run == 0 || now.seconds < long_step); ++run) {
      const double start = steady_seconds();
      PartTimes times;
      replicas.begin_step();
      replicas.forward_backward(pack.host, counts, 1, times, false);
      replicas.reduce_gradients();
      if (quantized_) quantized_->pass_gradients();
      if (quantized_) quantized_->restore(QuantizedWeights::Which::trained);
      made.optimization->step(made.optimization->base_rates(), 1, plan::common(stage_.optimizer).clip, replicas.sums());
      if (quantized_) quantized_->quantize();
      (void)GradientComputer::read_sums(replicas.sums(), stage_);
      now.seconds = steady_seconds() - start;
    }
  }

  const plan::Plan& plan_;
  const plan::Stage& stage_;
  int64_t rows_per_frame_;
  Registry& registry_;
  const FindBatchRequest& request_;
  ModelDescription description_;
  int64_t available_;
  budget::PackCapacity whole_; // the recipe's
  std::unique_ptr<QuantizedWeights> quantized_;
  int64_t units_ = 1, most_units_ = 1;
  ThreadReplicas::Size replicas_;
  FoundBatch found_;
};

} // namespace

FoundBatch find_batch(const plan::Plan& plan, const plan::Stage& stage, Registry& registry,
                      const FindBatchRequest& request) {
  const c10::InferenceMode without_autograd;
  ops::keep_freed_memory(); // as training does
  Search search(plan, stage, registry, request);
  return search.run();
}

} // namespace fvlm::train
