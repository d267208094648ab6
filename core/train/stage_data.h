// A stage's data, opened: tokenizer, shards, packer, and the loader over them. Nothing is decoded before loader().
#pragma once
#include "data/stream/statistics.h"
#include "feed/mix_data.h"
#include "model/weights/towers.h"
#include "plugin/selection.h"
#include "train/padding.h"

#include <memory>
#include <optional>

namespace fvlm::train {

class StageData {
 public:
  // Plan, stage and registry outlive it. `ranks`: that share the stage's samples. Throws Error for what is missing or
  // makes no sense.
  StageData(const plan::Plan& plan, const plan::Stage& stage, Registry& registry, const feed::MixDataOptions& options,
            int64_t ranks = 1);

  const plan::Stage& stage() const { return stage_; }
  const Tokenizer& tokenizer() const { return mix_.tokenizer(); }
  // Throws Error(data) for a decoder that knows fewer tokens than its tokenizer.
  void check_vocabulary_sizes(const plan::Model& model, const std::vector<DecoderConfig>& decoders) const;
  // As they are packed: where the model gives the answers, with room for them; judged answers with others beside.
  const SampleSource& samples() const { return changed_ ? *changed_ : mix_.samples(); }
  const MixSamples& source_samples() const { return mix_.samples(); } // before that
  const std::vector<std::string>& source_names() const { return mix_.source_names(); }
  std::vector<uint64_t> content_hashes() const { return mix_.content_hashes(); } // of the sources
  const Order& order() const { return order_; }
  const BatchPlan& batches() const { return batches_; }
  const SelectionReport& packer() const { return packer_; } // which was chosen

  Cursor start() const { return Composer::start(batches_, order_); }
  std::unique_ptr<DataLoader> loader(const Cursor& from) const; // of the rank's packs
  std::unique_ptr<DataLoader> loader_of_all_ranks() const;      // of the whole stage

  // Of about so many samples from the stage's beginning, as they come, in packs as training has them.
  DataStatistics statistics(int64_t samples, const PackPadding& padding,
                            const std::function<void(int64_t done)>& progress = {}) const;

 private:
  PackSize capacity() const;
  const plan::Stage& stage_;
  int64_t rows_per_frame_;
  feed::MixData mix_;
  std::unique_ptr<const SampleSource> changed_; // null: the samples are packed as the data have them
  Order order_;
  BatchPlan batches_;
  PackFunction pack_;
  SelectionReport packer_;
};

} // namespace fvlm::train
