// Terms of an objective beside plain formulas over one sample at a time: losses, and gradients by finite differences.
#include "../model/tiny.h"
#include "objective/dpo/settings.h"
#include "objective/kl/settings.h"
#include "objective/manifold/settings.h"
#include "objective/next_token/settings.h"
#include "train/input_staging.h"
#include "train/pass_builder.h"

#include <ATen/ops/log_softmax.h>
#include <ATen/ops/mse_loss.h>

namespace fvlm::train {
namespace {

using at::Tensor;
using model::Dice, model::Tiny;
using objective::Dpo, objective::Kl, objective::Manifold, objective::NextToken;

// A text whose answer is the given tokens, behind a question of random ones.
SampleText text_of(Dice& dice, int64_t question, const std::vector<TokenId>& answer) {
  SampleText text;
  for (int64_t i = 0; i < question; ++i) text.ids.push_back(static_cast<TokenId>(dice.upto(0, 52)));
  text.ids.insert(text.ids.end(), answer.begin(), answer.end());
  text.answer_mask.assign(text.ids.size(), 0);
  std::fill(text.answer_mask.begin() + question, text.answer_mask.end(), 1);
  return text;
}

class Terms : public testing::Test {
 protected:
  Terms() {
    Dice dice(5);
    plan_.model.image_size = 8;
    stage_.mode = "coarse_fine";
    stage_.data.teacher_prompt = "unused: the texts are here";
    for (const auto& [frames, question, of_teacher, answer] :
         std::vector<std::array<int64_t, 4>>{{3, 2, 6, 5}, {0, 4, 3, 2}, {1, 1, 9, 4}, {2, 3, 2, 1}}) {
      auto sample = std::make_shared<Sample>();
      sample->frames = frames;
      std::vector<TokenId> tokens;
      for (int64_t i = 0; i < answer; ++i) tokens.push_back(static_cast<TokenId>(dice.upto(0, 52)));
      sample->texts = {text_of(dice, question, tokens)};
      sample->teacher_texts = {text_of(dice, of_teacher, tokens)};
      samples_.push_back(sample);
    }
    pixels_ = ops::random({6, 3, 8, 8}, 3, at::kFloat).contiguous();
  }

  HostPack host(size_t first, size_t count) const {
    HostPack pack;
    int64_t before = 0;
    for (size_t i = 0; i < first; ++i) before += samples_[i]->frames;
    for (size_t i = first; i < first + count; ++i) {
      pack.samples.push_back({static_cast<int64_t>(i), samples_[i], pack.frame_count});
      pack.frame_count += samples_[i]->frames;
    }
    const float* values = pixels_.const_data_ptr<float>() + before * 3 * 8 * 8;
    pack.frames = {values, static_cast<size_t>(pack.frame_count * 3 * 8 * 8)};
    return pack;
  }

  Tensor frames_of(size_t sample) const {
    int64_t before = 0;
    for (size_t i = 0; i < sample; ++i) before += samples_[i]->frames;
    return samples_[sample]->frames > 0 ? pixels_.narrow(0, before, samples_[sample]->frames) : Tensor();
  }

  // The step's packs one after the other: sums of each term, and gradients.
  Tensor step(Tiny& tiny, size_t samples_of_a_pack, const objective::FrozenModels& frozen = {}) const {
    const objective::Objective objective(stage_.objective, stage_.mode);
    const PassBuilder builder(
        plan_, stage_, tiny.model, tiny.operations->tensor_options(),
        {.frames = 16, .rows = 256, .sequences = 8, .labels = 64, .longest_sequence = 64, .longest_video = 4});
    const StepCounts counts = counts_of(stage_, samples_, progress_);
    const Tensor sums = at::zeros({std::ssize(stage_.objective), objective.columns()}, at::kDouble);
    PartTimes times;
    for (size_t first = 0; first < samples_.size(); first += samples_of_a_pack) {
      auto in = on_device(builder.build(host(first, samples_of_a_pack), 0, counts, 1), at::kCPU);
      for (Tensor& mask : in.masks) mask = mask.to(at::kDouble);
      objective.forward_backward(*tiny.operations, tiny.model, frozen, {&in}, {sums, {}}, times);
    }
    return sums;
  }

  // Logits that predict tokens 1, 2, ... of a text, in a pack of its own.
  static Tensor logits(Tiny& tiny, const model::Model& model, const SampleText& text, const Tensor& frames) {
    model::Sample sample{frames, {{{text.ids.begin(), text.ids.end()}, std::vector<bool>(text.ids.size(), true)}}};
    const model::Pack pack = tiny.pack({sample});
    ops::Tape none(ops::Tape::Mode::forward_only);
    const auto seen = model.encode(none, *tiny.operations, pack, "coarse_fine");
    const auto hidden = model.decode(none, *tiny.operations, seen.tokens, pack);
    const Tensor all = model.decoder().logits(none, *tiny.operations, hidden).data;
    const int64_t predicting = std::ssize(text.ids) - 1;
    return all.narrow(0, all.size(0) - 1 - predicting, predicting);
  }

  // Gradients of the step are those of `loss`, by finite differences.
  static void expect_gradients(Tiny& tiny, const std::function<double()>& loss) {
    const auto gradients = tiny.take_gradients();
    for (auto& parameter : tiny.model.parameters().all())
      for (const int64_t element : {int64_t{0}, parameter.value.numel() / 2, parameter.value.numel() - 1}) {
        if (!gradients.contains(parameter.name)) continue;
        const double expected = ops::difference(parameter.value, element, loss);
        EXPECT_NEAR(gradients.at(parameter.name).reshape({-1})[element].item<double>(), expected,
                    2e-6 * std::max(1.0, std::abs(expected)))
            << parameter.name << " element " << element;
      }
  }

  plan::Plan plan_;
  plan::Stage stage_;
  double progress_ = 0;
  std::vector<std::shared_ptr<const Sample>> samples_;
  Tensor pixels_;
};

TEST_F(Terms, PositionWeightsMakeAWeightedMeanOverTheStep) {
  NextToken first;
  first.first = plan::Curve{{3}};
  first.position_weights = {4, 0.5};
  first.weight.points = {1, 3};
  NextToken all;
  all.on = plan::LossOn::all;
  stage_.objective = {first, all};
  progress_ = 0.25; // of the way from weight 1 to 3: 1.5
  Tiny tiny;
  const auto loss = [&] {
    double weighted = 0, weights = 0, sum = 0, count = 0;
    for (size_t i = 0; i < samples_.size(); ++i) {
      const SampleText& text = samples_[i]->texts[0];
      const Tensor log_probs = at::log_softmax(logits(tiny, tiny.model, text, frames_of(i)), -1);
      int64_t place = 0;
      for (int64_t t = 1; t < std::ssize(text.ids); ++t) {
        const double label = -log_probs[t - 1][text.ids[static_cast<size_t>(t)]].item<double>();
        sum += label;
        ++count;
        if (!text.answer_mask[static_cast<size_t>(t)] || place == 3) continue;
        const double weight = place++ == 0 ? 4 : 0.5;
        weighted += weight * label;
        weights += weight;
      }
    }
    return 1.5 * weighted / weights + sum / count;
  };
  for (const size_t samples_of_a_pack : {4, 2, 1}) {
    const Tensor sums = step(tiny, samples_of_a_pack);
    const auto mean = [&](int64_t term) { return (sums[term][0] / sums[term][1]).item<double>(); };
    EXPECT_NEAR(1.5 * mean(0) + mean(1), loss(), 1e-9) << samples_of_a_pack << " samples a pack";
    if (samples_of_a_pack == 1)
      expect_gradients(tiny, loss);
    else
      tiny.take_gradients();
  }
}

// The teacher is the model itself, or another one; either way it has no gradient.
TEST_F(Terms, KlPairsAnswersWithATeacherOfAnotherPrompt) {
  Kl kl;
  kl.reads = Kl::Reads::teacher_prompt;
  kl.first = plan::Curve{{2}};
  kl.temperature = 1.5;
  stage_.objective = {kl, NextToken()};
  Tiny tiny;
  const auto other = std::make_shared<model::Model>(
      model::tiny_config(), model::ArenaOptions{at::kCPU, at::kDouble, at::kDouble, [](const auto&) { return false; }});
  uint64_t seed = 100;
  for (auto& parameter : other->parameters().all())
    parameter.value.copy_(ops::random(parameter.value.sizes(), ++seed).mul(0.3));
  for (const bool itself : {true, false}) {
    SCOPED_TRACE(itself ? "itself" : "another model");
    const model::Model& teacher = itself ? tiny.model : *other;
    std::vector<Tensor> targets; // as they are now: the teacher does not follow the differences
    for (const auto& sample : samples_)
      targets.push_back(at::log_softmax(logits(tiny, teacher, sample->teacher_texts[0], {}) / 1.5, -1).clone());
    const auto loss = [&] {
      double divergence = 0, compared = 0, cross_entropy = 0, answered = 0;
      for (size_t i = 0; i < samples_.size(); ++i) {
        const SampleText &text = samples_[i]->texts[0], &other_text = samples_[i]->teacher_texts[0];
        const Tensor own = logits(tiny, tiny.model, text, frames_of(i));
        const Tensor soft = at::log_softmax(own / 1.5, -1), hard = at::log_softmax(own, -1);
        const auto answer = std::count(text.answer_mask.begin(), text.answer_mask.end(), 1);
        for (int64_t t = 0; t < answer; ++t) {
          const int64_t row = std::ssize(text.ids) - answer + t - 1;
          cross_entropy -= hard[row][text.ids[static_cast<size_t>(row + 1)]].item<double>();
          ++answered;
          if (t >= 2) continue;
          const Tensor target = targets[i][std::ssize(other_text.ids) - answer + t - 1];
          divergence += (target.exp() * (target - soft[row])).sum().item<double>() * 1.5 * 1.5;
          ++compared;
        }
      }
      return divergence / compared + cross_entropy / answered;
    };
    objective::FrozenModels frozen;
    if (!itself) frozen.teachers[0] = other;
    for (const size_t samples_of_a_pack : {4, 1}) {
      const Tensor sums = step(tiny, samples_of_a_pack, frozen);
      // Distributions are float32, whatever the model is.
      EXPECT_NEAR((sums.select(1, 0) / sums.select(1, 1)).sum().item<double>(), loss(), 1e-6);
      if (samples_of_a_pack == 4)
        expect_gradients(tiny, loss);
      else
        tiny.take_gradients();
    }
  }
}

TEST_F(Terms, NextTokenBesidePairsLearnsTheChosenAnswer) {
  Dpo dpo;
  dpo.loss = Dpo::Loss::simpo; // without a reference
  stage_.objective = {dpo, NextToken()};
  Dice dice(9);
  for (auto& sample : samples_) {
    auto pair = std::make_shared<Sample>(*sample);
    pair->teacher_texts.clear();
    std::vector<TokenId> rejected;
    for (int i = 0; i < 6; ++i) rejected.push_back(static_cast<TokenId>(dice.upto(0, 52)));
    pair->texts.push_back(text_of(dice, 3, rejected));
    sample = pair;
  }
  Tiny tiny;
  double cross_entropy = 0, count = 0;
  for (size_t i = 0; i < samples_.size(); ++i) {
    const SampleText& chosen = samples_[i]->texts[0];
    const Tensor own = at::log_softmax(logits(tiny, tiny.model, chosen, frames_of(i)), -1);
    for (size_t t = 1; t < chosen.ids.size(); ++t) {
      if (chosen.answer_mask[t] == 0) continue;
      cross_entropy -= own[static_cast<int64_t>(t - 1)][chosen.ids[t]].item<double>();
      ++count;
    }
  }
  EXPECT_EQ(counts_of(stage_, samples_).of_term[1], count) << "what the loss is a mean over";
  for (const size_t samples_of_a_pack : {4, 1}) {
    const Tensor sums = step(tiny, samples_of_a_pack);
    EXPECT_EQ(sums[0][1].item<double>(), std::ssize(samples_)) << "pairs";
    EXPECT_EQ(sums[1][1].item<double>(), count) << "labels";
    EXPECT_NEAR(sums[1][0].item<double>(), cross_entropy, 1e-6);
    tiny.take_gradients();
  }
}

// `first` rises from 1 to 3 and is rounded. Shapes stay, for captured graphs.
TEST_F(Terms, FirstMovesWithTheStageAndShapesDoNot) {
  Kl kl;
  kl.reads = Kl::Reads::teacher_prompt;
  NextToken next;
  kl.first = next.first = plan::Curve{{1, 3}};
  stage_.objective = {kl, next};
  Tiny tiny;
  std::vector<int64_t> answers;
  for (const auto& sample : samples_) {
    const auto& mask = sample->texts[0].answer_mask;
    answers.push_back(std::count(mask.begin(), mask.end(), 1));
  }
  std::optional<std::vector<int64_t>> shapes;
  for (const auto& [progress, first] :
       std::vector<std::pair<double, int64_t>>{{0, 1}, {0.2499, 1}, {0.25, 2}, {0.7499, 2}, {0.75, 3}, {1, 3}}) {
    progress_ = progress;
    SCOPED_TRACE(progress);
    const Tensor sums = step(tiny, 4);
    double divergence = 0, cross_entropy = 0, count = 0;
    for (size_t i = 0; i < samples_.size(); ++i) {
      const SampleText &text = samples_[i]->texts[0], &of_teacher = samples_[i]->teacher_texts[0];
      const Tensor own = at::log_softmax(logits(tiny, tiny.model, text, frames_of(i)), -1);
      const Tensor target = at::log_softmax(logits(tiny, tiny.model, of_teacher, {}), -1);
      for (int64_t t = 0; t < std::min(first, answers[i]); ++t, ++count) {
        const int64_t row = std::ssize(text.ids) - answers[i] + t - 1;
        const Tensor wanted = target[std::ssize(of_teacher.ids) - answers[i] + t - 1];
        divergence += (wanted.exp() * (wanted - own[row])).sum().item<double>();
        cross_entropy -= own[row][text.ids[static_cast<size_t>(row + 1)]].item<double>();
      }
    }
    for (const int64_t term : {0, 1}) EXPECT_EQ(sums[term][1].item<double>(), count);
    EXPECT_NEAR(sums[0][0].item<double>(), divergence, 1e-6);
    EXPECT_NEAR(sums[1][0].item<double>(), cross_entropy, 1e-6);
    tiny.take_gradients();
    const PassBuilder builder(
        plan_, stage_, tiny.model, tiny.operations->tensor_options(),
        {.frames = 16, .rows = 256, .sequences = 8, .labels = 64, .longest_sequence = 64, .longest_video = 4});
    auto built = builder.build(host(0, 4), 0, counts_of(stage_, samples_, progress), 1);
    if (!shapes) shapes = shape_key(built.inputs);
    EXPECT_EQ(shape_key(built.inputs), *shapes);
  }
}

TEST_F(Terms, ManifoldComparesColumnsWithTheEmbedding) {
  Manifold manifold;
  manifold.weight.points = {0.7};
  stage_.objective = {manifold};
  // The embedding is the target, which gradients do not move.
  Tiny tiny(model::tiny_config(), at::kDouble,
            [](const model::ParameterSpec& spec) { return !spec.name.starts_with("decoder."); });
  const auto loss = [&] {
    const Tensor embedding = tiny.model.decoder().embedding().value();
    double sum = 0;
    for (const size_t i : {0, 3}) { // the others have fewer than two rows
      model::Sample sample{frames_of(i), {{{1, 2}, {false, true}}}};
      const model::Pack pack = tiny.pack({sample});
      ops::Tape none(ops::Tape::Mode::forward_only);
      const Tensor rows = tiny.model.encode(none, *tiny.operations, pack, "coarse_fine").tokens.data;
      sum += at::mse_loss(rows.mean(0), embedding.mean(0)).item<double>() +
             at::mse_loss(rows.std(0), embedding.std(0)).item<double>();
    }
    return 0.7 * sum / 2;
  };
  for (const size_t samples_of_a_pack : {4, 2, 1}) {
    const Tensor sums = step(tiny, samples_of_a_pack);
    EXPECT_EQ(sums[0][1].item<double>(), 2);
    EXPECT_NEAR(0.7 * (sums[0][0] / sums[0][1]).item<double>(), loss(), 1e-9);
    if (samples_of_a_pack == 4)
      expect_gradients(tiny, loss);
    else
      tiny.take_gradients();
  }
}

TEST_F(Terms, AFrozenDecoderPassesGradientsAndKeepsNone) {
  Kl kl;
  kl.reads = Kl::Reads::teacher_prompt;
  stage_.objective = {NextToken(), kl, Manifold()};
  Tiny whole, frozen(model::tiny_config(), at::kDouble,
                     [](const model::ParameterSpec&spec) { return !spec.name.starts_with("decoder."); });
  step(whole, 4);
  step(frozen, 4);
  const auto all = whole.take_gradients(), passed = frozen.take_gradients();
  int64_t of_decoder = 0, elements = 0;
  for (const auto& [name, gradient] : all) {
    if (name.starts_with("decoder.")) {
      EXPECT_FALSE(passed.contains(name)) << name;
      ++of_decoder;
      continue;
    }
    ASSERT_TRUE(passed.contains(name)) << name;
    ops::expect_close(passed.at(name), gradient, 1e-12, name);
    elements += gradient.numel();
  }
  EXPECT_GT(of_decoder, 0);
  // Nor is there memory for them.
  EXPECT_LT(frozen.model.parameters().gradients().numel(), whole.model.parameters().gradients().numel());
  EXPECT_GE(frozen.model.parameters().gradients().numel(), elements);
}

} // namespace
} // namespace fvlm::train
