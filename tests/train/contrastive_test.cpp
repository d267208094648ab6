// Queries and what they are to find: which texts of a pack are compared, the loss and its gradient, and a stage that
// learns embeddings.
#include "../ops/tools.h"
#include "base/error.h"
#include "objective/contrastive/settings.h"
#include "small_run.h"
#include "train/initial_model.h"
#include "train/input_staging.h"
#include "train/pass_builder.h"
#include "train/retrieval_pairs.h"
#include "train/stage_model.h"

#include <ATen/ops/concat.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros.h>
#include <c10/core/InferenceMode.h>

#include <csignal>
#include <cstdio>
#include <gmock/gmock.h>
#include <sys/wait.h>
#include <unistd.h>

namespace fvlm::train {
namespace {

using at::Tensor;
using objective::Contrastive;
using testing::HasSubstr;
using Role = Sample::Role;

struct Input {
  Role role;
  std::vector<TokenId> ids;
};

HostPack pack_of(const std::vector<Input>& inputs) {
  HostPack pack;
  int64_t position = -1;
  for (const auto& [role, ids] : inputs) {
    position += role == Role::query;
    auto sample = std::make_shared<Sample>();
    sample->role = role;
    sample->texts.push_back({ids, std::vector<uint8_t>(ids.size())});
    pack.samples.push_back({position, sample, 0});
  }
  return pack;
}

std::vector<int64_t> compared(const objective::Retrieval& retrieval, int64_t query) {
  std::vector<int64_t> texts;
  for (int64_t text = 0; text < retrieval.compared.size(1); ++text)
    if (retrieval.compared[query][text].item<bool>()) texts.push_back(text);
  return texts;
}

TEST(RetrievalPairs, AreComparedWithAllPositivesAndNegatives) {
  const HostPack pack = pack_of(
      {{Role::query, {1}}, {Role::positive, {2}}, {Role::negative, {3}}, {Role::query, {4}}, {Role::positive, {5}}});
  const auto retrieval = retrieval_of(pack, 4, 8);
  ops::expect_close(retrieval.queries, at::tensor({0, 3, 0, 0}, at::kLong), 0, "queries");
  ops::expect_close(retrieval.positives, at::tensor({1, 4, 0, 0}, at::kLong), 0, "positives");
  EXPECT_THAT(compared(retrieval, 0), testing::ElementsAre(1, 2, 4));
  EXPECT_THAT(compared(retrieval, 1), testing::ElementsAre(1, 2, 4));
  EXPECT_THAT(compared(retrieval, 2), testing::ElementsAre(0)) << "of padding, so that its loss is finite";
}

TEST(RetrievalPairs, EqualContentIsNoNegative) {
  const HostPack pack = pack_of({{Role::query, {1}},
                                 {Role::positive, {2}}, // as the second query's
                                 {Role::query, {3}},
                                 {Role::positive, {2}},
                                 {Role::negative, {9}},
                                 {Role::query, {1}},
                                 {Role::positive, {7}}}); // of the same query as the first
  const auto retrieval = retrieval_of(pack, 3, 7);
  EXPECT_THAT(compared(retrieval, 0), testing::ElementsAre(1, 4));
  EXPECT_THAT(compared(retrieval, 1), testing::ElementsAre(3, 4, 6));
  EXPECT_THAT(compared(retrieval, 2), testing::ElementsAre(4, 6));
}

class ContrastiveRun : public SmallRun {
 protected:
  ContrastiveRun() {
    change_recipe("return fvlm.recipe {",
                  "local found = mix { { data .. \"/captions/*.tar\", fields = { query = \"caption\" } } }\n"
                  "return fvlm.recipe {");
    change_recipe(R"(data = mix { { data .. "/pairs/*.tar" } }, objective = fvlm.dpo { beta = 0.1 }, samples = 48,)",
                  R"(from = "model", data = found, objective = fvlm.contrastive { temperature = 0.1 }, samples = 48,)");
    change_recipe(
        R"(fvlm.evaluation "pairs" { data = mix { { data .. "/heldout/pairs/*.tar" } }, measure = "preference" })",
        R"(every = 3, fvlm.evaluation "found" { data = found, samples = 40, measure = "retrieval" })");
  }

  static HostPack three_queries() {
    const auto ids = [](int first, int count) {
      std::vector<TokenId> all;
      for (int i = 0; i < count; ++i) all.push_back(static_cast<TokenId>((first * 31 + i * 7919) % 256));
      return all;
    };
    return pack_of({{Role::query, ids(1, 9)},
                    {Role::positive, ids(2, 12)},
                    {Role::negative, ids(3, 4)},
                    {Role::query, ids(4, 7)},
                    {Role::positive, ids(5, 5)},
                    {Role::query, ids(6, 6)},
                    {Role::positive, ids(7, 11)},
                    {Role::negative, ids(8, 3)}});
  }

  struct Learnt {
    Tensor sums;
    double derivative = 0; // of the gradient, in the direction of what the parameters were moved by
  };

  // In float64. `move`: how far the parameters are moved along a random direction first.
  Learnt learn(const Contrastive& term, double move, bool padded = false) {
    const c10::InferenceMode without_autograd;
    plan::Plan plan = resolved().plan;
    plan::Stage& stage = plan.stages.back();
    stage.objective = {term};
    ops::Operations operations(registry_, {.dtype = at::kDouble, .gradient_dtype = at::kDouble});
    const auto all = [](const model::ParameterSpec&) { return true; };
    const auto policy = make_model(describe(plan), 1, {at::kCPU, at::kDouble, at::kDouble, all});
    auto generator = at::detail::createCPUGenerator(5);
    std::vector<Tensor> directions;
    for (auto& parameter : policy->parameters().all()) {
      directions.push_back(at::randn(parameter.value.sizes(), generator, at::kDouble));
      parameter.value.add_(directions.back(), move);
    }
    const HostPack host = three_queries();
    const PassBuilder builder(plan, stage, *policy, at::TensorOptions(at::kDouble),
                              max_capacity_of(plan, stage, {16, 256}, 8));
    std::vector<std::shared_ptr<const Sample>> samples;
    for (const PackedSample& packed : host.samples) samples.push_back(packed.sample);
    objective::PassInputs in = on_device(builder.build(host, 0, counts_of(stage, samples), 1), at::kCPU);
    if (padded) pad(in, host);
    const objective::Objective objective(stage.objective, stage.mode);
    Learnt learnt{at::zeros({1, objective.columns()}, at::kDouble)};
    PartTimes times;
    objective.forward_backward(operations, *policy, {}, {&in}, {learnt.sums, {}}, times);
    for (size_t i = 0; const auto& parameter : policy->parameters().all()) {
      if (parameter.has_gradient) learnt.derivative += (parameter.gradient * directions[i]).sum().item<double>();
      ++i;
    }
    return learnt;
  }

  // Texts without rows, and queries without texts.
  static void pad(objective::PassInputs& in, const HostPack& host) {
    constexpr int64_t padding = 3;
    Tensor& ends = in.pack.texts.cu_seqlens;
    ends = at::concat({ends, ends.slice(0, -1).expand({2 * padding})});
    in.used_pairs = at::concat({in.used_pairs, at::zeros({padding}, at::kDouble)});
    in.retrieval = retrieval_of(host, in.used_pairs.size(0), ends.size(0) - 1);
  }

  static std::vector<Contrastive> terms() {
    Contrastive plain, symmetric, nested;
    plain.temperature = symmetric.temperature = 0.3, nested.temperature = 0.7;
    symmetric.symmetric = nested.symmetric = true;
    nested.dimensions = {4, 16, 9};
    return {plain, symmetric, nested};
  }
};

TEST_F(ContrastiveRun, TheGradientIsThatOfTheLoss) {
  constexpr double step = 1e-5;
  for (const Contrastive& term : terms()) {
    const auto loss = [&](double move) { return learn(term, move).sums[0][0].item<double>() / 3; };
    const double slope = (loss(step) - loss(-step)) / (2 * step), derivative = learn(term, 0).derivative;
    EXPECT_GT(std::abs(slope), 1e-3);
    EXPECT_NEAR(derivative, slope, 1e-6 * std::max(1.0, std::abs(slope)));
  }
}

TEST_F(ContrastiveRun, PaddingChangesNothing) {
  for (const Contrastive& term : terms()) {
    const Learnt plain = learn(term, 0), padded = learn(term, 0, true);
    ops::expect_close(padded.sums, plain.sums, 1e-12, "sums");
    EXPECT_NEAR(padded.derivative, plain.derivative, 1e-12 * std::abs(plain.derivative));
    EXPECT_EQ(plain.sums[0][1].item<double>(), 3) << "queries";
    EXPECT_EQ(plain.sums[0][5].item<double>(), 3 * 4) << "negatives";
  }
}

TEST_F(ContrastiveRun, AStageLearnsToFind) {
  run("run", {"log_every=1", "stages.prefer.samples=320", "stages.prefer.optimizer.lr.default=0.004"},
      {.stage = "prefer"});
  std::vector<nlohmann::json> steps, evaluations;
  for (const auto& line : metrics(folder("run"))) {
    if (line["kind"] == "step") steps.push_back(line);
    if (line["kind"] == "evaluation") evaluations.push_back(line);
  }
  ASSERT_EQ(steps.size(), 40);
  for (const auto& line : steps) {
    EXPECT_EQ(line["loss"], line["term.contrastive"]);
    EXPECT_GT(line["negatives"], 2);
    EXPECT_LE(line["negatives"], 7);
  }
  EXPECT_LT(steps.back()["loss"], 0.9 * steps.front()["loss"].get<double>());
  EXPECT_GT(steps.back()["positive_similarity"], steps.back()["negative_similarity"]);
  EXPECT_GT(evaluations.back()["mrr"], evaluations.front()["mrr"]);
  EXPECT_GE(evaluations.back()["candidates"], 10);
}

// Where packs were divided among them, a query would see the positives of a part of its pack.
TEST_F(ContrastiveRun, ReplicasDoNotDivideAPack) {
  run("one", {"log_every=1"}, {.stage = "prefer", .replicas = ThreadReplicas::Size{1, 1}});
  run("three", {"log_every=1"}, {.stage = "prefer", .replicas = ThreadReplicas::Size{3, 2}});
  expect_equal_runs("one", "three");
}

TEST_F(ContrastiveRun, AfterAKillEndsWithTheSameBits) {
  const std::vector<std::string> sets{"checkpoint.every=1", "log_every=1"};
  run("whole", sets, {.stage = "prefer"});
  const pid_t child = fork();
  if (child == 0) {
    if (!std::freopen("/dev/null", "w", stderr)) _exit(1);
    TrainRequest request{.stage = "prefer"};
    request.faults.before_pack = [](const std::string&, int64_t step, HostPack&) {
      if (step == 4) raise(SIGKILL);
    };
    try {
      run("killed", sets, request);
    } catch (const std::exception&) {
    }
    _exit(1);
  }
  int status = 0;
  waitpid(child, &status, 0);
  ASSERT_TRUE(WIFSIGNALED(status));
  run("killed", sets, {.stage = "prefer"});
  expect_equal_runs("whole", "killed");
}

TEST_F(ContrastiveRun, RefusesWhatItCannotLearn) {
  const auto refused = [this](const std::vector<std::string>& sets) {
    try {
      run("refused", sets, {.stage = "prefer"});
      return std::string();
    } catch (const Error& error) {
      return error.text();
    }
  };
  EXPECT_THAT(refused({R"(stages.prefer.objective=[{"kind":"contrastive"},{"kind":"next_token"}])"}),
              HasSubstr("give it a stage of its own"));
  EXPECT_THAT(refused({"stages.prefer.objective[1].dimensions=[64]"}),
              HasSubstr("dimensions has 64, and embeddings of this model have 16"));
  EXPECT_THAT(refused({R"(stages.prefer.data.sources[1].fields={"user":"caption"})"}),
              HasSubstr("it is no query with what it is to find, from which contrastive learns"));
  EXPECT_THAT(refused({R"(stages.prefer.objective=[{"kind":"next_token"}])"}),
              HasSubstr("it is a query with what it is to find, from which fvlm.contrastive learns"));
  EXPECT_THAT(refused({"stages.prefer.evaluation.sets.found.measure=loss"}),
              HasSubstr("is a query with what it is to find"));
  EXPECT_THAT(refused({"stages.prefer.evaluation.sets.found.show=2"}), HasSubstr("has no answers to show"));
}

TEST_F(ContrastiveRun, MemoryThatDoesNotHoldAPackEndsIt) {
  TrainRequest request{.stage = "prefer"};
  request.faults.before_pack = [](const std::string&, int64_t, HostPack&) { throw std::bad_alloc(); };
  try {
    run("run", {}, request);
    ADD_FAILURE() << "it went on";
  } catch (const Error& error) {
    EXPECT_THAT(error.text(), HasSubstr("the memory does not hold a pack, whose texts are compared with each other"));
  }
}

} // namespace
} // namespace fvlm::train
