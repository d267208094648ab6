// The switches of a recipe's `speed`: turning one off does not change the result of a step.
#include "../ops/tools.h"
#include "data/stream/frame_pool.h"
#include "model/connector/foveated/settings.h"
#include "objective/dpo/settings.h"
#include "objective/next_token/settings.h"
#include "recorded_reduction.h"
#include "small_run.h"
#include "train/groups.h"
#include "train/initial_model.h"
#include "train/stage_model.h"

#include <c10/core/InferenceMode.h>

#include <set>

namespace fvlm::train {
namespace {

using at::Tensor;

struct Length {
  int64_t frames;
  std::vector<int64_t> texts; // tokens of each
  int64_t copies = 1;         // of each picture, among the frames
};

class Switches : public SmallRun {
 protected:
  static constexpr int64_t image_size = 16, vocabulary = 256;

  // Of samples of any length, some of whose tokens are answers.
  static HostPack ragged(const std::vector<Length>& lengths) {
    HostPack pack;
    for (const Length& length : lengths) {
      auto sample = std::make_shared<Sample>();
      sample->frames = length.frames;
      sample->copies = length.copies;
      for (const int64_t tokens : length.texts) {
        SampleText& text = sample->texts.emplace_back();
        for (int64_t i = 0; i < tokens; ++i) {
          text.ids.push_back(static_cast<TokenId>((i * 7919 + tokens) % vocabulary));
          text.answer_mask.push_back(i % 5 > 1);
        }
      }
      pack.samples.push_back({std::ssize(pack.samples), sample, pack.frame_count});
      pack.frame_count += sample->distinct_frames();
    }
    const auto pixels = static_cast<size_t>(pack.frame_count * 3 * image_size * image_size);
    if (pixels == 0) return pack;
    pack.buffer = allocate_host(pixels * sizeof(float));
    auto* values = reinterpret_cast<float*>(pack.buffer.get());
    for (size_t i = 0; i < pixels; ++i) values[i] = static_cast<float>(i * 2654435761 % 1009) / 504 - 1;
    pack.frames = {values, pixels};
    return pack;
  }

  static HostPack samples_for(const plan::Stage& stage) {
    if (stage.needs_pairs()) return ragged({{2, {9, 12}}, {0, {7, 5}}, {1, {6, 11}}});
    return ragged({{2, {9}}, {0, {12}}, {1, {5}}, {2, {4}}});
  }

  struct Learnt {
    Tensor sums;
    std::map<std::string, Tensor> gradients;
    std::set<std::string> work; // operations, with their shapes
  };

  // Of one pack, in float64.
  Learnt learn(const plan::Plan& plan, const std::string& name, const HostPack& pack) {
    const c10::InferenceMode without_autograd;
    const plan::Stage& stage = stage_of(plan, name);
    ops::Operations operations(registry_, {.dtype = at::kDouble, .gradient_dtype = at::kDouble});
    const auto made = [&](uint64_t seed, bool trains) {
      model::ArenaOptions options{
          at::kCPU, at::kDouble, at::kDouble, [trains, &plan, &stage](const model::ParameterSpec& spec) {
            return trains && budget::trains(stage, group_of(plan.model, directory_name(spec.name)));
          }};
      auto model = make_model(describe(plan), seed, options);
      model->speed = plan.speed;
      return model;
    };
    const auto policy = made(1, true);
    policy->encoder().recompute = model::Recompute::from_plan(stage.activation_checkpointing.vision);
    policy->decoder().recompute = model::Recompute::from_plan(stage.activation_checkpointing.decoder);
    Frozen frozen;
    const Order order = Order::once({std::ssize(pack.samples)});
    if (stage.uses(plan::ObjectiveTerm::Reference::cached))
      frozen.cache = std::make_shared<ReferenceLogProbCache>(order, folder("reference.bin"));
    else if (stage.needs_pairs())
      frozen.models.reference = made(2, false);
    GradientComputer gradient_computer(plan, stage, *policy, operations, max_capacity_of(plan, stage, {16, 256}, 8),
                                       frozen);
    if (frozen.cache) gradient_computer.cache_reference(pack, *made(2, false));
    std::vector<std::shared_ptr<const Sample>> samples;
    for (const PackedSample& packed : pack.samples) samples.push_back(packed.sample);
    PartTimes times;
    RecordedReduction recorded(policy->parameters());
    gradient_computer.forward_backward(pack, counts_of(stage, samples), 1, times, false, &recorded.reduction);
    recorded.expect_final();
    Learnt learnt{gradient_computer.sums().clone(), {}, {}};
    for (const SelectionReport& report : operations.choices()) learnt.work.insert(report.subject + " " + report.shape);
    policy->parameters().zero_missing_gradients();
    for (const auto& parameter : policy->parameters().all())
      if (parameter.gradient.defined()) learnt.gradients[parameter.name] = parameter.gradient.clone();
    return learnt;
  }

  static plan::Stage& stage_of(plan::Plan& plan, const std::string& name) {
    return *std::find_if(plan.stages.begin(), plan.stages.end(), [&](const auto& stage) { return stage.name == name; });
  }
  static const plan::Stage& stage_of(const plan::Plan& plan, const std::string& name) {
    return stage_of(const_cast<plan::Plan&>(plan), name);
  }

  static void expect_same(const Learnt& actual, const Learnt& expected) {
    ops::expect_close(actual.sums, expected.sums, 1e-9, "sums");
    double most = 0;
    for (const auto& [name, gradient] : expected.gradients) {
      const double largest = gradient.abs().max().item<double>();
      most = std::max(most, largest);
      ops::expect_close(actual.gradients.at(name) / std::max(largest, 1e-12), gradient / std::max(largest, 1e-12), 1e-9,
                        name);
    }
    EXPECT_GT(most, 0);
  }

  // Compares steps with all switches, with all but this one, with only this one and with none. Returns whether the
  // switch
  // changes the executed operations.
  bool changes_work_alone(bool plan::Speed::*which, const std::string& stage,
                          const std::function<void(plan::Plan&)>& change = {}, std::optional<HostPack> pack = {}) {
    SCOPED_TRACE(stage);
    plan::Plan all = resolved().plan;
    if (change) change(all);
    if (!pack) pack = samples_for(stage_of(all, stage));
    plan::Plan without = all, alone = all;
    without.speed.*which = false;
    alone.speed = resolved({"speed=false"}).plan.speed;
    const Learnt none = learn(alone, stage, *pack);
    alone.speed.*which = true;
    const Learnt one = learn(alone, stage, *pack), expected = learn(all, stage, *pack);
    expect_same(learn(without, stage, *pack), expected);
    expect_same(one, expected);
    expect_same(none, expected);
    return one.work != none.work;
  }

  static void remember_and_predict(plan::Plan& plan) {
    plan::Stage& stage = stage_of(plan, "prefer");
    stage.objective[0].as<objective::Dpo>()->cache_reference = true;
    stage.objective.push_back(objective::NextToken{});
  }
  static void freeze_the_tower(plan::Plan& plan) {
    for (plan::Stage& stage : plan.stages) stage.freeze = {"vision"};
  }
  static void encode_once_more(plan::Plan& plan) {
    for (plan::Stage& stage : plan.stages) stage.mode = "refined";
  }
  static void read_the_last_layer_alone(plan::Plan& plan) {
    plan.model.connector.as<connector::Foveated>()->attend = connector::Attend::shallow;
  }
  static void learn_answers_alone(plan::Plan& plan) { stage_of(plan, "instruct").objective.resize(1); }
  static void learn_from_the_coarse_pass_alone(plan::Plan& plan) {
    auto& objective = stage_of(plan, "instruct").objective;
    objective.erase(objective.begin());
  }
  static void compute_every_second_layer_again(plan::Plan& plan) {
    stage_of(plan, "align").activation_checkpointing.decoder.every = 2;
  }
  static void compute_again(plan::Plan& plan) {
    for (plan::Stage& stage : plan.stages)
      stage.activation_checkpointing.vision.every = stage.activation_checkpointing.decoder.every = 1;
  }
};

TEST_F(Switches, CoarseInTower) {
  const auto which = &plan::Speed::coarse_in_tower;
  for (const char* stage : {"align", "instruct", "prefer"}) EXPECT_TRUE(changes_work_alone(which, stage));
  EXPECT_TRUE(changes_work_alone(which, "prefer", remember_and_predict));
  EXPECT_TRUE(changes_work_alone(which, "instruct", compute_again));
  EXPECT_FALSE(changes_work_alone(which, "instruct", read_the_last_layer_alone)) << "there is one layer to read";
}

TEST_F(Switches, SkipLastPatches) {
  const auto which = &plan::Speed::skip_last_patches;
  for (const char* stage : {"align", "instruct", "prefer"}) EXPECT_TRUE(changes_work_alone(which, stage));
  EXPECT_TRUE(changes_work_alone(which, "prefer", remember_and_predict));
  for (const auto& change : {compute_again, read_the_last_layer_alone})
    EXPECT_TRUE(changes_work_alone(which, "instruct", change));
}

TEST_F(Switches, FoldLayerScale) {
  const auto which = &plan::Speed::fold_layer_scale;
  for (const char* stage : {"align", "instruct", "prefer"}) EXPECT_TRUE(changes_work_alone(which, stage));
  EXPECT_TRUE(changes_work_alone(which, "prefer", remember_and_predict));
  for (const auto& change : {compute_again, read_the_last_layer_alone})
    EXPECT_TRUE(changes_work_alone(which, "instruct", change));
}

TEST_F(Switches, LossTokensOnly) {
  const auto which = &plan::Speed::loss_tokens_only;
  for (const char* stage : {"align", "instruct"})
    EXPECT_FALSE(changes_work_alone(which, stage)) << "every token has a loss";
  EXPECT_TRUE(changes_work_alone(which, "instruct", learn_answers_alone));
  EXPECT_TRUE(changes_work_alone(which, "prefer"));
  EXPECT_TRUE(changes_work_alone(which, "prefer", remember_and_predict));
}

TEST_F(Switches, JointWeightGradients) {
  const auto which = &plan::Speed::joint_weight_gradients;
  for (const char* stage : {"align", "instruct", "prefer"}) EXPECT_TRUE(changes_work_alone(which, stage));
  EXPECT_TRUE(changes_work_alone(which, "prefer", remember_and_predict));
  EXPECT_TRUE(changes_work_alone(which, "instruct", read_the_last_layer_alone));
  EXPECT_TRUE(changes_work_alone(which, "instruct", learn_from_the_coarse_pass_alone));
  EXPECT_TRUE(changes_work_alone(which, "align", compute_every_second_layer_again));
  EXPECT_FALSE(changes_work_alone(which, "align", compute_again)) << "there are no layers that wait";
}

TEST_F(Switches, SharedPreferenceFrames) {
  const auto which = &plan::Speed::shared_preference_frames;
  EXPECT_FALSE(changes_work_alone(which, "align")) << "there is one text";
  EXPECT_TRUE(changes_work_alone(which, "prefer"));
  EXPECT_TRUE(changes_work_alone(which, "prefer", remember_and_predict));
}

TEST_F(Switches, SharedRepeatedFrames) {
  const auto which = &plan::Speed::shared_repeated_frames;
  const auto images = ragged({{4, {9}, 4}, {2, {7}}, {0, {12}}, {4, {5}, 4}}),
             pairs = ragged({{4, {9, 12}, 4}, {0, {7, 5}}, {2, {6, 11}}, {4, {5, 8}, 4}});
  const auto repeats = [](const std::function<void(plan::Plan&)>& change) {
    return [change](plan::Plan& plan) {
      for (plan::Stage& stage : plan.stages) stage.data.replicate_image_frames = 4;
      if (change) change(plan);
    };
  };
  EXPECT_FALSE(changes_work_alone(which, "align")) << "no frame is repeated";
  EXPECT_FALSE(changes_work_alone(which, "align", {}, ragged({{2, {9}}, {2, {8}}, {2, {4}}, {2, {7}, 2}})))
      << "one of eight";
  for (const char* stage : {"align", "instruct"}) EXPECT_TRUE(changes_work_alone(which, stage, repeats({}), images));
  EXPECT_TRUE(changes_work_alone(which, "prefer", repeats({}), pairs));
  EXPECT_TRUE(changes_work_alone(which, "prefer", repeats(remember_and_predict), pairs));
  for (const auto& change : {compute_again, read_the_last_layer_alone, freeze_the_tower, encode_once_more})
    EXPECT_TRUE(changes_work_alone(which, "instruct", repeats(change), images));
}

TEST_F(Switches, TextWithoutTower) {
  const auto which = &plan::Speed::text_without_tower;
  EXPECT_FALSE(changes_work_alone(which, "align")) << "there are frames";
  EXPECT_TRUE(changes_work_alone(which, "align", {}, ragged({{0, {8}}, {0, {13}}})));
  const auto pairs = ragged({{0, {8, 9}}, {0, {13, 4}}});
  EXPECT_TRUE(changes_work_alone(which, "prefer", {}, pairs));
  EXPECT_TRUE(changes_work_alone(which, "prefer", remember_and_predict, pairs));
}

} // namespace
} // namespace fvlm::train
