// PassBuilder: from a loader's pack to what a pass through the objective reads, in host memory.
#pragma once
#include "data/stream/host_pack.h"
#include "feed/model_samples.h"
#include "objective/objective.h"
#include "recipe/plan.h"
#include "train/pack_classes.h"
#include "train/step_counts.h"

namespace fvlm::train {

// A pack ready for staging.
struct BuiltPass {
  objective::PassInputs inputs;        // without frames
  feed::HostFrames frames;             // in the loader's memory
  double counted = 0;                  // labels, pairs and texts of all terms
  int64_t encoded_frames = 0;          // those that the encoder reads, without padding
  int64_t used_rows = 0, all_rows = 0; // of the decoder, on this rank: those that hold a token, and all
};

class PassBuilder {
 public:
  // `policy` outlives it. `options`: of the tensors that a model reads. `max`: the most that a pack of the stage holds.
  // `context`: whose ranks have a part of each pack's rows each.
  PassBuilder(const plan::Plan& plan, const plan::Stage& stage, const model::Model& policy,
              const at::TensorOptions& options, const model::Capacity& max, const ops::ContextGroup& context = {});

  // The pass of one decoder, where the step holds `counts`, and losses are multiplied by `scale`.
  BuiltPass build(const HostPack& host, size_t decoder, const StepCounts& counts, double scale) const;
  // The same for models that only read: without weights, and with the texts of cached teachers.
  BuiltPass build_to_read(const HostPack& host, size_t decoder) const;

 private:
  // The tokens of a pack's texts that the output head predicts, which are its labels: those of any term, or all.
  struct PredictedTokens {
    struct OfText {
      const SampleText& text;
      std::vector<bool> is_predicted; // as long as the text
      size_t number = 0;              // of the sample's texts
    };
    std::vector<OfText> texts;

    // Of what `each_token` makes of each OfText, as long as its text, the elements of the pack's labels in their order.
    template <class EachToken>
    auto at_labels(const EachToken& each_token) const;
  };

  std::vector<bool> predicted(const SampleText& text) const;
  BuiltPass build_inputs(const HostPack& host, bool with_teacher_texts, double progress) const;
  std::vector<int64_t> add_teacher_pack(const HostPack& host, const PredictedTokens& tokens,
                                        objective::PassInputs& in) const;
  void add_compared(const PredictedTokens& tokens, const std::vector<int64_t>& of_teacher,
                    objective::PassInputs& in) const;
  void keep_part(BuiltPass& built) const;
  at::Tensor mask_of(size_t term, const PredictedTokens& tokens, int64_t labels, double progress) const;
  static at::Tensor outcomes_of(const PredictedTokens& tokens, int64_t labels);
  model::Capacity padded(model::Capacity used) const;
  feed::Repeats repeats_of(const HostPack& host) const;
  int64_t most_labels(const plan::ObjectiveTerm& term) const;

  const plan::Stage& stage_;
  plan::Speed speed_;
  std::vector<plan::Term> teacher_terms_; // those whose teachers read a prompt of their own
  feed::Texts texts_;
  int64_t image_size_;
  model::FrameReader reader_;
  at::TensorOptions options_;
  model::Capacity max_;
  ops::ContextGroup context_;
  PackClasses classes_;
};

} // namespace fvlm::train
