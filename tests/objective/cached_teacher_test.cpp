// A stage whose teacher's hidden states are cached, compared with the same stage with a teacher that reads every pack.
#include "base/error.h"
#include "train/measured_step.h"
#include "train/small_run.h"

#include <ATen/ops/zeros.h>

#include <csignal>
#include <gmock/gmock.h>

namespace fvlm::train {
namespace {

using testing::AllOf, testing::HasSubstr;

class CachedTeacher : public SmallRun {
 protected:
  CachedTeacher() {
    change_recipe("log_every = 2", "log_every = 1");
    change_recipe("data = mix { { data .. \"/questions/*.tar\" } }",
                  "data = mix { { data .. \"/questions/*.tar\" }, teacher_prompt = \"{user} It is {assistant}.\" }");
    change_recipe(
        "{ fvlm.next_token { on = \"answer\" }, fvlm.next_token { on = \"all\", pass = \"coarse\", weight = 0.5 } }",
        "{ fvlm.next_token {}, fvlm.kl { reads = \"teacher_prompt\", first = fvlm.arg(\"first\", \"3\") == \"3\" and 3 "
        "or { 1, 4 }, temperature = 2, cache_teacher = fvlm.arg(\"cached\", \"no\") == \"yes\" } }");
    change_recipe("samples = 64,", "samples = fvlm.arg(\"samples\", 64), freeze = { \"decoder\" },");
  }

  TrainReport instruct(const std::string& name, TrainRequest request = {}) {
    args_["cached"] = name == "live" ? "no" : "yes";
    request.stage = "instruct";
    request.faults.before_reference = [&](const std::string&, const HostPack& pack) {
      read_ += std::ssize(pack.samples);
      if (on_pack_) on_pack_();
    };
    return run(name, {"stages.instruct.from=model"}, std::move(request));
  }

  fs::path file(const std::string& name) const { return folder(name) / "instruct" / "teacher.safetensors"; }

  std::vector<nlohmann::json> steps(const std::string& name) const {
    std::vector<nlohmann::json> found;
    for (const auto& line : metrics(folder(name)))
      if (line["kind"] == "step")
        found.push_back({line["loss"], line["term.kl"], line["gradient_norm"], line["samples"]});
    return found;
  }

  std::string weights(const std::string& name) const {
    const StageFolder stage(folder(name) / "instruct");
    return read_file(stage.of(stage.steps().back()) / "connector.safetensors");
  }

  void expect_same_run() const {
    EXPECT_GT(steps("live").size(), 0u);
    EXPECT_EQ(steps("live"), steps("cached"));
    EXPECT_TRUE(weights("live") == weights("cached"));
  }

  std::string error_of(const std::string& from, const std::string& to) {
    change_recipe(from, to);
    args_["cached"] = "yes";
    try {
      resolved();
    } catch (const Error& error) {
      return error.text();
    }
    return "none";
  }

  int64_t read_ = 0; // samples that a teacher read before training
  std::function<void()> on_pack_;
};

TEST_F(CachedTeacher, ChangesNoBit) {
  instruct("live");
  EXPECT_EQ(read_, 0);
  EXPECT_FALSE(fs::exists(file("live")));
  instruct("cached");
  EXPECT_EQ(read_, 64);
  EXPECT_EQ(steps("live").size(), 8u);
  expect_same_run();
  const auto rows = Safetensors::open(file("cached"));
  EXPECT_EQ(rows.at("keys").shape, std::vector<int64_t>{64});
  EXPECT_EQ(rows.at("rows.0").shape[1], 16);
  EXPECT_LE(rows.at("rows.0").shape[0], 64 * 3);
}

TEST_F(CachedTeacher, HoldsAllLabelsThatAMovingFirstSelects) {
  args_["first"] = "moves";
  instruct("live");
  instruct("cached");
  expect_same_run();
}

TEST_F(CachedTeacher, IsComputedOnceHoweverOftenTheRunStops) {
  instruct("live");
  for (int part = 0; part < 10; ++part)
    if (!instruct("cached", {.max_steps = 1}).stopped) break;
  EXPECT_EQ(read_, 64);
  expect_same_run();
}

TEST_F(CachedTeacher, IsTheSameInAllEpochsAndForOtherPackSizes) {
  args_["samples"] = "400"; // of 160
  instruct("live");
  TrainRequest request;
  request.faults.before_pack = [](const std::string&, int64_t, HostPack& pack) {
    if (pack.samples.size() > 3) throw std::bad_alloc();
  };
  instruct("cached", request);
  EXPECT_LE(read_, 160 + 8) << "and what shares a pack with the last of them";
  const auto live = steps("live"), cached = steps("cached");
  ASSERT_EQ(live.size(), 50u);
  ASSERT_EQ(cached.size(), live.size());
  for (size_t step = 0; step < live.size(); ++step)
    EXPECT_NEAR(cached[step][0].get<double>(), live[step][0].get<double>(), 1e-6) << "step " << step;
}

TEST_F(CachedTeacher, InterruptedOneContinues) {
  instruct("live");
  int packs = 0;
  on_pack_ = [&] {
    if (++packs == 2) std::raise(SIGTERM);
  };
  EXPECT_TRUE(instruct("cached").stopped);
  EXPECT_EQ(read_, 16);
  // A process that is killed there leaves no files and damages none.
  on_pack_ = [] { throw std::runtime_error("dead"); };
  EXPECT_THROW(instruct("cached"), std::runtime_error);
  on_pack_ = {};
  read_ = 0;
  EXPECT_FALSE(instruct("cached").stopped);
  EXPECT_EQ(read_, 64 - 16);
  expect_same_run();
}

TEST_F(CachedTeacher, DamagedOrForeignOneIsComputedAgain) {
  instruct("live");
  instruct("cached", {.max_steps = 1});
  const std::string whole = read_file(file("cached"));
  std::string flipped = whole;
  flipped[whole.size() - 9] ^= 4;
  const Order order = Order::once({1});
  TeacherRowCache others(order, folder("others"));
  others.open("another plan and another teacher");
  others.insert({0, std::make_shared<Sample>(), 0}, {at::zeros({1, 16})});
  others.write(true);
  for (const std::string& damaged :
       {flipped, whole.substr(0, whole.size() - 24), read_file(folder("others")), std::string()}) {
    write_file_atomic(file("cached"), damaged);
    read_ = 0;
    testing::internal::CaptureStderr();
    instruct("cached", {.max_steps = 1});
    EXPECT_THAT(testing::internal::GetCapturedStderr(), HasSubstr("computed again"));
    EXPECT_EQ(read_, 64);
    EXPECT_EQ(read_file(file("cached")), whole);
  }
  instruct("cached");
  expect_same_run();
}

// Of another model, which reads the same frames and text.
TEST_F(CachedTeacher, OfAnotherModelChangesNoBit) {
  run("other", {}, {.stage = "align"});
  change_recipe(", teacher_prompt = \"{user} It is {assistant}.\"", "");
  change_recipe("reads = \"teacher_prompt\"",
                "teacher = \"" + (folder("other") / "align" / "step-000010").string() + "\"");
  change_recipe(", freeze = { \"decoder\" }", "");
  instruct("live");
  instruct("cached");
  EXPECT_EQ(read_, 64);
  expect_same_run();
}

TEST_F(CachedTeacher, MemoryIsEstimatedAsItIsMeasured) {
  args_["cached"] = "yes";
  const auto plan = resolved(measurable_sizes).plan;
  const StepSizes sizes = measure_step(plan, plan.stages[1], {24, 768}, registry_);
  EXPECT_NEAR(sizes.ratio(), 1, 0.05) << sizes.estimated << " bytes estimated, " << sizes.measured << " measured";
}

TEST_F(CachedTeacher, OfAModelThatTrainsItsDecoderIsAMistake) {
  EXPECT_THAT(error_of(", freeze = { \"decoder\" }", ""),
              AllOf(HasSubstr("stages.instruct.objective[2].cache_teacher"), HasSubstr("trains its decoder")));
}

TEST_F(CachedTeacher, OfAGroupOfTheDecoderThatTrainsIsAMistake) {
  change_recipe("connector = { query_dim = 12 },",
                "connector = { query_dim = 12 }, groups = { last = { \"decoder.model.layers.1.*\" } },");
  try {
    instruct("cached");
    ADD_FAILURE() << "it trained";
  } catch (const Error& error) {
    EXPECT_THAT(error.text(), AllOf(HasSubstr("cache_teacher"), HasSubstr("decoder.model.layers.1.")));
  }
}

// LatentWire: the decoder reads as text what an encoder of bytes writes as latents for it.
TEST_F(CachedTeacher, ReadsTheContextOfAQuestionAsText) {
  const std::string facts = (data() / "facts").string();
  const std::string command = std::string(FVLM_MAKE_FACTS) + " --out " + facts + " >/dev/null 2>&1";
  ASSERT_EQ(std::system(command.c_str()), 0) << command;
  write_file_atomic(recipe(), R"(
local fvlm = require "fvlm"
local facts = fvlm.arg("data", "") .. "/facts"
return fvlm.recipe {
  name = "facts", precision = "fp32", log_every = 1,
  model = fvlm.model {
    vision = fvlm.bytes { max_bytes = 256, width = 32, layers = 2, heads = 2, mlp = 64 },
    decoder = fvlm.llama { width = 32, layers = 2, heads = 2, mlp = 64, max_positions = 256, tokenizer = facts .. "/tokenizer" },
    connector = fvlm.byte_latents { latents = 8, heads = 2 },
  },
  fvlm.stage "instruct" {
    freeze = "decoder",
    data = fvlm.mix { { facts .. "/train/4/*.tar" }, system = "", max_text_tokens = 128, questions = {},
                      teacher_prompt = "<|im_start|>{source}<|im_end|>" },
    objective = { fvlm.next_token {}, fvlm.kl { reads = "teacher_prompt", first = 2, temperature = 1.5,
                                                cache_teacher = fvlm.arg("cached", "no") == "yes" } },
    optimizer = fvlm.adamw { lr = 2e-3 }, schedule = fvlm.cosine { to_share = 0.02 }, batch = 16, samples = 128,
    packing = { frames = 16, tokens = 2176, segments = 16 },
  },
})");
  instruct("live");
  EXPECT_EQ(read_, 0);
  instruct("cached");
  EXPECT_EQ(read_, 128);
  expect_same_run();
  for (const auto& step : steps("live")) EXPECT_GT(step[1], 0);
}

} // namespace
} // namespace fvlm::train
