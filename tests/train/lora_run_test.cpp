// Runs that train adapters: what checkpoints hold, how they resume, what they share with a reference, and mistakes.
#include "base/error.h"
#include "model/adapter.h"
#include "model/loading.h"
#include "model/merge.h"
#include "model/weights/adapter_transfer.h"
#include "model/weights/attached_adapter.h"
#include "quantize/quantize_model.h"
#include "small_run.h"
#include "train/initial_model.h"
#include "train/stage_model.h"
#include "train/step_memory.h"

#include <c10/core/InferenceMode.h>

#include <algorithm>
#include <csignal>
#include <gmock/gmock.h>
#include <sys/wait.h>
#include <unistd.h>

namespace fvlm::train {
namespace {

class LoraRun : public SmallRun {
 protected:
  static constexpr const char* adapters = R"(fvlm.lora { rank = 2, targets = { "q", "v", "down" } })";

  // A trained model as base, and a recipe whose decoder has adapters.
  void SetUp() override {
    run("base", {}, {.stage = "align"});
    base_ = StageFolder(folder("base") / "align").of(10);
    describe_adapters(adapters);
  }

  void describe_adapters(const std::string& lora, const std::string& base = "") {
    std::string text = small_recipe();
    const size_t begin = text.find("  model = fvlm.model {"), end = text.find("  checkpoint = ");
    text.replace(begin, end - begin,
                 "  model = fvlm.model { directory = \"" + (base.empty() ? base_.string() : base) +
                     "\", image_size = 16" + (lora.empty() ? "" : ", adapters = " + lora) + " },\n");
    write_file_atomic(recipe(), text);
  }

  fs::path last(const std::string& name, const char* stage) const {
    const StageFolder stages(folder(name) / stage);
    return stages.of(stages.steps().back());
  }

  std::string mistake(const std::function<void()>& work) const {
    try {
      work();
    } catch (const Error& error) {
      return error.text();
    }
    return "nothing was thrown";
  }

  fs::path base_;
};

TEST_F(LoraRun, CheckpointsHoldAdaptersAlone) {
  run("lora", {}, {.stage = "align"});
  const fs::path checkpoint = last("lora", "align");
  EXPECT_FALSE(fs::exists(checkpoint / "decoder" / "model.safetensors"));
  EXPECT_TRUE(fs::exists(checkpoint / "decoder" / "adapter_config.json"));
  EXPECT_TRUE(fs::exists(checkpoint / "decoder" / "tokenizer.json"));
  const auto file = Safetensors::open(checkpoint / "decoder" / "adapter_model.safetensors");
  EXPECT_EQ(file.tensors().size(), 2 * 3 * 2U); // A and B of three linears in two layers
  for (const TensorView& tensor : file.tensors()) EXPECT_NE(tensor.name.find(".lora_"), std::string::npos);
  const auto directory = ModelDirectory::open(checkpoint);
  const auto& adapter = *directory.description().parts.back().adapter;
  EXPECT_EQ(adapter.base.folder, fs::weakly_canonical(base_ / "decoder").string());
  EXPECT_EQ(adapter.summary(), "rank 2, alpha 4 on 6 linears");
  // Encoder and connector, which have no adapters, train and are there whole. The optimizer has moments of the rest
  // alone: two for each trained number.
  EXPECT_TRUE(fs::exists(checkpoint / "vision" / "model.safetensors"));
  int64_t trained = 0;
  for (const fvlm::Parameter& parameter : directory.parameters())
    if (parameter.name.find("decoder.") != 0 || parameter.of_adapter) trained += elements_of(parameter.spec->shape);
  const auto state = Safetensors::open(checkpoint / "training_state" / "optimizer.safetensors");
  for (const TensorView& moment : state.tensors()) {
    EXPECT_GE(static_cast<int64_t>(moment.elements()), trained);
    EXPECT_LT(static_cast<int64_t>(moment.elements()), trained + 64 * 100) << "padding of blocks at most";
  }
  // The adapters have learnt: B began as zeros.
  for (const TensorView& tensor : file.tensors()) {
    const c10::InferenceMode without_autograd;
    EXPECT_GT(model::tensor_over(tensor).abs().max().item<double>(), 1e-4) << tensor.name;
  }
}

TEST_F(LoraRun, ResumesToTheSameBits) {
  describe_adapters(
      R"(fvlm.lora { rank = 2, dropout = 0.2, dora = true, targets = "all", modules_to_save = "model.norm" })");
  run("whole");
  for (const int64_t step : {1, 4, 4, 8, 5}) run("parts", {"checkpoint.every=1"}, {.max_steps = step});
  run("parts", {"checkpoint.every=1"});
  for (const char* stage : {"align", "instruct", "prefer"})
    for (const char* name : {"decoder/adapter_model.safetensors", "connector.safetensors", "vision/model.safetensors",
                             "training_state/optimizer.safetensors"})
      EXPECT_TRUE(read_file(last("whole", stage) / name) == read_file(last("parts", stage) / name))
          << stage << ": " << name;
}

TEST_F(LoraRun, AnEarlierStageThatTeachesSharesTheBase) {
  const std::string taught = R"(stages.instruct.objective=[{"kind":"next_token"},{"kind":"kl","teacher":"align"}])";
  const plan::Plan plan = resolved({taught}).plan;
  const auto budget = stage_budget(plan, plan.stages[1], budget::describe(plan), registry_, budget::Device::cpu);
  const auto amount = [&](budget::Item item) { return budget.step.amounts[static_cast<size_t>(item)]; };
  EXPECT_GT(budget.step.base, 0);
  EXPECT_EQ(amount(budget::Item::frozen), amount(budget::Item::weights) - budget.step.base);
  run("a", {taught, "log_every=1"}, {.max_steps = 12});
  std::vector<double> divergences;
  for (const auto& line : metrics(folder("a")))
    if (line["kind"] == "step" && line["stage"] == "instruct") divergences.push_back(line["term.kl"]);
  ASSERT_EQ(divergences.size(), 2u);
  EXPECT_NEAR(divergences[0], 0, 1e-6) << "the stage begins with the adapters of its teacher";
  EXPECT_GT(divergences[1], 1e-7);
}

// kill -9 before the optimizer's step, a step later each time.
TEST_F(LoraRun, AfterKillsIsBitExact) {
  const std::vector<std::string> sets{"checkpoint.every=1"};
  run("whole", sets, {.stage = "align"});
  for (int kills = 1; kills <= 6; ++kills) {
    const pid_t child = fork();
    if (child == 0) {
      TrainRequest request{.stage = "align"};
      request.faults.before_step = [kills](const std::string&, int64_t step, model::Parameters&) {
        if (step >= 3 * kills / 2) ::kill(getpid(), SIGKILL);
      };
      try {
        run("killed", sets, request);
      } catch (const std::exception&) {
      }
      _exit(0);
    }
    int status = 0;
    waitpid(child, &status, 0);
    ASSERT_TRUE(WIFSIGNALED(status)) << "kill " << kills;
  }
  run("killed", sets, {.stage = "align"});
  for (const char* name :
       {"decoder/adapter_model.safetensors", "connector.safetensors", "training_state/optimizer.safetensors"})
    EXPECT_TRUE(read_file(last("whole", "align") / name) == read_file(last("killed", "align") / name)) << name;
}

TEST_F(LoraRun, UntrainedWeightsKeepTheirBytes) {
  const std::vector<std::string> sets{"precision=bf16", "stages.align.freeze=vision,connector",
                                      "stages.instruct.freeze=vision,connector", "stages.prefer.freeze=connector"};
  for (const int64_t steps : {4, 8}) run("lora", sets, {.max_steps = steps}); // resumed within the first two stages
  run("lora", sets);
  model::merge_adapters(last("lora", "instruct"), folder("merged"), {}, [](uint64_t, uint64_t) {});
  const auto base = ModelDirectory::open(base_), merged = ModelDirectory::open(folder("merged"));
  int kept = 0;
  for (const fvlm::Parameter& before : base.parameters()) {
    const TensorView& after = *merged.at(before.name).view;
    const bool is_adapted = before.name.find("q_proj") != std::string::npos ||
                            before.name.find("v_proj") != std::string::npos ||
                            before.name.find("down_proj") != std::string::npos;
    EXPECT_EQ(after.dtype, DType::f32) << before.name;
    EXPECT_EQ(std::ranges::equal(after.data, before.view->data), !is_adapted) << before.name;
    kept += is_adapted ? 0 : 1;
  }
  EXPECT_GT(kept, 40);
  // The last stage trains the encoder, and not the connector.
  const auto end = ModelDirectory::open(last("lora", "prefer"));
  for (const fvlm::Parameter& parameter : end.parameters()) {
    const bool is_trained = parameter.name.starts_with("vision.");
    if (is_trained == parameter.name.starts_with("connector.")) continue;
    EXPECT_EQ(parameter.view->dtype, is_trained ? DType::bf16 : DType::f32) << parameter.name;
    EXPECT_EQ(std::ranges::equal(parameter.view->data, base.at(parameter.name).view->data), !is_trained)
        << parameter.name;
  }
}

// A later run that freezes what an earlier one has trained.
TEST_F(LoraRun, WeightsOfTheDirectoryThatARunStartsFromKeepTheirBytes) {
  write_file_atomic(recipe(), small_recipe());
  run("frozen", {"precision=bf16", "stages.instruct.freeze=vision"}, {.stage = "instruct", .from = base_});
  const auto base = ModelDirectory::open(base_), end = ModelDirectory::open(last("frozen", "instruct"));
  for (const fvlm::Parameter& parameter : end.parameters()) {
    const bool is_frozen = parameter.name.starts_with("vision.");
    EXPECT_EQ(parameter.view->dtype, is_frozen ? DType::f32 : DType::bf16) << parameter.name;
    EXPECT_EQ(std::ranges::equal(parameter.view->data, base.at(parameter.name).view->data), is_frozen)
        << parameter.name;
  }
}

TEST_F(LoraRun, DropoutChangesTheRun) {
  run("without", {"stages.align.samples=16"}, {.stage = "align"});
  run("with", {"stages.align.samples=16", "model.adapters.1.dropout=0.5"}, {.stage = "align"});
  EXPECT_FALSE(read_file(last("without", "align") / "decoder/adapter_model.safetensors") ==
               read_file(last("with", "align") / "decoder/adapter_model.safetensors"));
}

TEST_F(LoraRun, AReferenceSharesTheBase) {
  const auto plan = resolved().plan;
  const c10::InferenceMode without_autograd;
  ModelDescription description = describe(plan);
  description.seal_bases();
  const auto directory = ModelDirectory::open(base_);
  const MakeModel begin = [&](const model::ArenaOptions& options) {
    return make_from(directory, description, 42, options);
  };
  const StageModel made = make_stage_model(plan, plan.stages[2], registry_, at::kCPU, begin, begin);
  int shared = 0, own = 0;
  for (ops::Parameter& parameter : made.model->parameters().all()) {
    const ops::Parameter& other = made.frozen.models.reference->parameters().at(parameter.name);
    EXPECT_TRUE(parameter.value.equal(other.value)) << parameter.name;
    const bool is_same = parameter.value.data_ptr() == other.value.data_ptr();
    EXPECT_EQ(is_same, parameter.name.starts_with("decoder.") && !model::is_of_adapter(parameter.name))
        << parameter.name;
    (is_same ? shared : own) += 1;
  }
  EXPECT_GT(shared, 10);
  EXPECT_GT(own, 10);
}

// What one model and its adapters take when they are served together.
TEST_F(LoraRun, AttachedAdaptersShareAllThatTheyLeaveAsItIs) {
  run("frozen", {"stages.align.freeze=vision,connector"}, {.stage = "align"});
  run("trained", {"stages.align.freeze=vision"}, {.stage = "align"});
  const c10::InferenceMode without_autograd;
  AdapterReader reader(ModelDirectory::open(base_));
  const model::ArenaOptions options{.trains = [](const model::ParameterSpec&) { return false; }};
  const auto base = model::load_model(reader.base(), options);
  for (const std::string name : {"frozen", "trained"}) {
    SCOPED_TRACE(name);
    const auto directory = ModelDirectory::open(last(name, "align"));
    const auto made = model::load_attached(reader.read(folder(name)), reader.base(), *base, options);
    int shared = 0, own = 0;
    for (const ops::Parameter& parameter : made->parameters().all()) {
      const bool is_own =
          model::is_of_adapter(parameter.name) ||
          (name == "trained" && !parameter.name.starts_with("decoder.") && !parameter.name.starts_with("vision."));
      (is_own ? own : shared) += 1;
      if (!model::is_of_adapter(parameter.name)) {
        EXPECT_EQ(parameter.value.data_ptr() != base->parameters().at(parameter.name).value.data_ptr(), is_own)
            << parameter.name;
      }
      if (is_own || !parameter.name.starts_with("decoder.")) { // the directory has no others
        EXPECT_TRUE(parameter.value.equal(model::tensor_over(*model::find_parameter(directory, parameter.name).view)))
            << parameter.name;
      }
    }
    EXPECT_GT(shared, 10);
    EXPECT_GT(own, 11);
  }
}

TEST_F(LoraRun, PlanCountsAdaptersAndTheirMemory) {
  const auto with = resolved();
  const auto description = describe(with.plan);
  int64_t base = 0, adapters_counted = 0;
  for (const budget::GroupLine& line : budget::group_lines(with.plan.model, with.plan.stages[0], description)) {
    EXPECT_EQ(line.trained, line.name != "decoder (base)") << line.name;
    if (line.name == "decoder (base)") base = line.parameters;
    if (line.name == "decoder") adapters_counted = line.parameters;
  }
  EXPECT_GT(base, 1000);
  EXPECT_EQ(adapters_counted, 2 * 2 * ((16 + 16) + (16 + 16) + (16 + 32))); // rank x layers x (in + out) of q, v, down
  describe_adapters(R"(fvlm.lora { rank = 2, targets = { "q", "v", "down" }, rank_pattern = { v = 3 } })");
  for (const budget::GroupLine& line :
       budget::group_lines(resolved().plan.model, with.plan.stages[0], describe(resolved().plan)))
    if (line.name == "decoder") {
      EXPECT_EQ(line.parameters - adapters_counted, 2 * (16 + 16));
    }
  const auto need = [&](const recipe::Resolved& resolved, size_t stage) {
    return stage_budget(resolved.plan, resolved.plan.stages[stage], describe(resolved.plan), registry_,
                        budget::Device::cpu)
        .step.amounts;
  };
  const auto of = [](const budget::Amounts& amounts, budget::Item item) { return amounts[static_cast<size_t>(item)]; };
  const auto lora = need(with, 2);
  describe_adapters("");
  const auto plain = need(resolved(), 2);
  using enum budget::Item;
  EXPECT_LT(of(lora, gradients) + 4 * base - 4 * adapters_counted, of(plain, gradients) + 4 * 64 * 100);
  EXPECT_LT(of(lora, moments), of(plain, moments));
  EXPECT_LT(of(lora, frozen) + 4 * base - 4 * adapters_counted, of(plain, frozen) + 4 * 64 * 100)
      << "the reference shares the base";
}

// Of modules that one product reads, too.
constexpr const char* several_ranks = R"(fvlm.lora { rank = 2, targets = "all", modules_to_save = "model.norm",
  rank_pattern = { k = 3, gate_proj = 1, ["layers.1.mlp.down_proj"] = 5, [".*0.self_attn.[ov]_proj"] = 4 },
  alpha_pattern = { q = 7, ["decoder.*up_proj"] = 1.5 } })";

TEST_F(LoraRun, RanksAndAlphasAreByModule) {
  describe_adapters(several_ranks);
  const PartAdapter adapter = *describe(resolved().plan).parts.back().adapter;
  const auto expect = [&](const std::string& module, int64_t rank, double alpha) {
    const AdaptedModule* found = adapter.find("model.layers." + module);
    ASSERT_TRUE(found) << module;
    EXPECT_EQ(found->rank, rank) << module;
    EXPECT_EQ(found->alpha, alpha) << module;
  };
  expect("0.self_attn.q_proj", 2, 7);
  expect("1.self_attn.k_proj", 3, 6); // twice the rank, where nothing is said
  expect("0.self_attn.v_proj", 4, 8);
  expect("1.self_attn.v_proj", 2, 4);
  expect("0.mlp.gate_proj", 1, 2);
  expect("1.mlp.up_proj", 2, 1.5);
  expect("0.mlp.down_proj", 2, 4);
  expect("1.mlp.down_proj", 5, 10);
}

TEST_F(LoraRun, GoesOnFromPeftAdaptersOfSeveralRanks) {
  describe_adapters(several_ranks);
  run("whole");
  for (const int64_t step : {1, 5, 8}) run("parts", {"checkpoint.every=1"}, {.max_steps = step});
  run("parts", {"checkpoint.every=1"});
  for (const char* stage : {"align", "prefer"})
    for (const char* name : {"decoder/adapter_model.safetensors", "training_state/optimizer.safetensors"})
      EXPECT_TRUE(read_file(last("whole", stage) / name) == read_file(last("parts", stage) / name)) << stage << name;

  export_adapter({.model = last("whole", "align"), .out = folder("peft")});
  import_adapter({.peft = folder("peft"), .base = base_, .out = folder("imported"), .part = "decoder"});
  const std::string from = "stages.align.from=" + folder("imported").string();
  run("further", {from, "stages.align.optimizer.lr=1e-50"}, {.stage = "align"});
  EXPECT_TRUE(read_file(last("further", "align") / "decoder/adapter_model.safetensors") ==
              read_file(last("whole", "align") / "decoder/adapter_model.safetensors"));
  describe_adapters(
      R"(fvlm.lora { rank = 2, targets = "all", modules_to_save = "model.norm", alpha_pattern = { q = 7 } })");
  EXPECT_THAT(
      mistake([&] { run("other", {from}, {.stage = "align"}); }),
      testing::HasSubstr(R"(of "model.layers.0.self_attn.k_proj" rank 3, alpha 6, and the recipe's rank 2, alpha 4)"));
}

TEST_F(LoraRun, LearnsOnInt4WithAndWithoutAQuantizedHead) {
  write_file_atomic(recipe(), small_recipe());
  run("captions", {"stages.align.samples=1200", "stages.align.optimizer.lr=0.01"}, {.stage = "align"});
  for (const std::string head : {"", "int8", "int4"}) {
    const std::string base = "int4" + head, qlora = "qlora-" + base;
    SCOPED_TRACE(base);
    quantize::QuantizeRequest request;
    request.model = last("captions", "align");
    request.out = folder(base);
    request.quantization = {"int4", {"connector.*", "vision.*"}, head};
    quantize::quantize_model(request, registry_, [](uint64_t, uint64_t) {});
    // From captions to questions, by the adapters alone.
    describe_adapters(R"(fvlm.lora { rank = 4, targets = "all" })", folder(base).string());
    run(qlora,
        {"stages.instruct.freeze=vision,connector", "stages.instruct.samples=320", "stages.instruct.optimizer.lr=0.01",
         "log_every=1"},
        {.stage = "instruct", .from = folder(base)});
    std::vector<double> losses;
    for (const auto& line : metrics(folder(qlora)))
      if (line["kind"] == "step") losses.push_back(line["loss"]);
    ASSERT_EQ(losses.size(), 40U);
    const auto mean = [&](size_t first) { return (losses[first] + losses[first + 1] + losses[first + 2]) / 3; };
    EXPECT_LT(mean(37), 0.8 * mean(0));
    EXPECT_EQ(ModelDirectory::open(last(qlora, "instruct")).schemes().size(), 2 * 7U + (head.empty() ? 0 : 1));
  }
}

// The base has inner layers, which alone multiply in fp8.
TEST_F(LoraRun, InFp8FollowsBf16) {
  write_file_atomic(recipe(), small_recipe());
  change_recipe("width = 16, layers = 2, heads = 2, mlp = 32", "width = 64, layers = 4, heads = 2, mlp = 128");
  run("wide", {}, {.stage = "align"});
  base_ = StageFolder(folder("wide") / "align").of(10);
  describe_adapters(R"(fvlm.lora { rank = 4, targets = "all" })");
  const auto losses = [&](const std::string& precision) {
    run(precision,
        {"precision=" + precision, "log_every=1", "stages.align.optimizer.lr=0.01", "stages.align.samples=320"},
        {.stage = "align"});
    std::vector<double> all;
    for (const auto& line : metrics(folder(precision)))
      if (line["kind"] == "step") all.push_back(line["loss"]);
    return all;
  };
  const auto exact = losses("bf16"), rounded = losses("fp8");
  ASSERT_EQ(exact.size(), rounded.size());
  ASSERT_LT(exact.back(), exact.front() - 0.1) << "there is something to follow";
  for (size_t step = 0; step < exact.size(); ++step) EXPECT_NEAR(rounded[step], exact[step], 0.03) << step;
  EXPECT_NE(exact, rounded) << "it computes in bf16";
}

TEST_F(LoraRun, SaysWhatDoesNotFit) {
  const auto refused = [&](const std::string& lora) {
    return mistake([&] {
      describe_adapters(lora);
      describe(resolved().plan);
    });
  };
  EXPECT_THAT(refused(R"(fvlm.lora { rank = 2, targets = { "q_prok" } })"),
              testing::HasSubstr("did you mean 'q_proj'?"));
  EXPECT_THAT(refused("fvlm.lora { rank = 0 }"), testing::HasSubstr("rank"));
  EXPECT_THAT(refused("fvlm.lora { rank = 2, parts = { 'connector' } }"), testing::HasSubstr("no part 'connector'"));
  EXPECT_THAT(refused("fvlm.lora { rank = 2, modules_to_save = { 'q_proj' } }"), testing::HasSubstr("is a linear"));
  EXPECT_THAT(refused("{ fvlm.lora { rank = 2 }, fvlm.lora { rank = 4 } }"), testing::HasSubstr("has two adapters"));
  const auto with_ranks = [&](const std::string& ranks) { return refused("fvlm.lora { rank = 2, " + ranks + " }"); };
  EXPECT_THAT(with_ranks("rank_pattern = { q_porj = 4 }"),
              testing::AllOf(testing::HasSubstr("model.adapters[1].rank_pattern"),
                             testing::HasSubstr("'q_porj' matches no module that has an adapter"),
                             testing::HasSubstr("did you mean 'q_proj'? adapters are on q_proj, v_proj")));
  EXPECT_THAT(with_ranks("alpha_pattern = { down = 4 }"),
              testing::HasSubstr("'down' matches no module that has an adapter")); // which targets do not name
  EXPECT_THAT(with_ranks("rank_pattern = { q = 4, ['.*0.self_attn.q_proj'] = 3 }"), testing::HasSubstr("both match"));
  EXPECT_THAT(with_ranks("rank_pattern = { ['(q'] = 4 }"), testing::HasSubstr("cannot be matched"));
  EXPECT_THAT(with_ranks("rank_pattern = { q = 0 }"), testing::HasSubstr("rank_pattern.q"));
  describe_adapters("fvlm.lora { rank = 2, dora = true }");
  EXPECT_THAT(mistake([&] { resolved({"precision=fp8"}); }),
              testing::HasSubstr("no effect on weights with adapters of DoRA"));

  describe_adapters(adapters);
  run("lora", {}, {.max_steps = 4});
  // The base changes below the run.
  const fs::path weights = base_ / "decoder" / "model.safetensors";
  std::string bytes = read_file(weights);
  const std::string before = bytes;
  bytes[bytes.size() - 2] = static_cast<char>(bytes[bytes.size() - 2] ^ 1);
  write_file_atomic(weights, bytes);
  EXPECT_THAT(mistake([&] { run("lora"); }), testing::HasSubstr("the base has changed since"));
  write_file_atomic(weights, before);
  run("lora", {}, {.max_steps = 1});
  // Adapters of another shape.
  describe_adapters("fvlm.lora { rank = 4 }");
  EXPECT_THAT(mistake([&] { run("other", {"stages.align.from=" + last("lora", "align").string()}); }),
              testing::HasSubstr("have rank 2, alpha 4 on 6 linears"));
}

} // namespace
} // namespace fvlm::train
