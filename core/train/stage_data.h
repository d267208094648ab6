// A stage's data, opened: tokenizer, shards, packer, and the loader over them. Nothing is decoded before loader().
#pragma once
#include "data/media/video.h"
#include "data/stream/loader.h"
#include "data/stream/mix_samples.h"
#include "data/stream/statistics.h"
#include "data/tokenizer.h"
#include "plugin/registry.h"
#include "recipe/plan.h"

#include <c10/core/Device.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace fvlm::train {

// The stage of that name, the first for an empty one. Throws Error(usage).
const plan::Stage& stage_named(const plan::Plan& plan, const std::string& name);

struct StageDataOptions {
  LoaderOptions loader; // what the plan says goes before its workers, memory and quarantine limits
  int64_t ranks = 1;
  at::Device device = at::kCPU; // that reads the frames
  MixSamples::Progress progress;
};

class StageData {
 public:
  // Plan, stage and registry outlive it. Throws Error for what is missing or makes no sense.
  StageData(const plan::Plan& plan, const plan::Stage& stage, Registry& registry, const StageDataOptions& options);

  const plan::Stage& stage() const { return stage_; }
  const Tokenizer& tokenizer() const { return tokenizer_; }
  const MixSamples& samples() const { return *samples_; }
  const Order& order() const { return *order_; }
  const BatchPlan& batches() const { return batches_; }
  const std::vector<std::string>& source_names() const { return names_; }

  Cursor start() const { return Composer::start(batches_, *order_); }
  std::unique_ptr<Loader> loader(const Cursor& from) const;

  // Of about so many samples from the stage's beginning, as they come.
  DataStatistics statistics(int64_t samples, const std::function<void(int64_t done)>& progress = {}) const;

 private:
  PackSize capacity() const;
  const plan::Plan& plan_;
  const plan::Stage& stage_;
  plan::Mix mix_; // the stage's, or what `preprocess` made of it
  LoaderOptions options_;
  Tokenizer tokenizer_;
  std::vector<std::string> names_;
  std::optional<VideoDecoder> video_;
  std::unique_ptr<MixSamples> samples_;
  std::optional<Order> order_;
  BatchPlan batches_;
  PackFunction pack_;
};

} // namespace fvlm::train
