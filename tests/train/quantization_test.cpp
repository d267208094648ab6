#include "base/error.h"
#include "model/weights/safetensors.h"
#include "small_run.h"
#include "train/initial_model.h"
#include "train/quantized_weights.h"

#include <c10/core/InferenceMode.h>

#include <cmath>
#include <limits>

namespace fvlm::train {
namespace {

class Quantization : public SmallRun {
 protected:
  void SetUp() override {
    change_recipe("checkpoint = {", R"(quantization = fvlm.arg("aware", "yes") == "yes" and
    { scheme = "int8", skip = { "vision.*" } } or nil,
  checkpoint = {)");
    change_recipe("samples = 80,", "samples = 80, quantization_aware = fvlm.arg(\"aware\", \"yes\") == \"yes\",");
  }

  fs::path last(const std::string& name) const {
    const StageFolder checkpoints(folder(name) / "align");
    return checkpoints.of(checkpoints.steps().at(checkpoints.steps().size() - 1));
  }

  // By how much of its scale the weights of a row lie off their codes, at most; 0 for quantised ones.
  static double off_grid(const float* row, int64_t size) {
    float largest = 0;
    for (int64_t i = 0; i < size; ++i) largest = std::max(largest, std::abs(row[i]));
    double off = 0;
    for (int64_t i = 0; i < size; ++i) {
      const double code = static_cast<double>(row[i]) / static_cast<double>(largest) * 127;
      off = std::max(off, std::abs(code - std::round(code)));
    }
    return off;
  }
  static double off_grid(const at::Tensor& weight) {
    double off = 0;
    for (int64_t row = 0; row < weight.size(0); ++row)
      off = std::max(off, off_grid(weight.const_data_ptr<float>() + row * weight.size(1), weight.size(1)));
    return off;
  }
};

TEST_F(Quantization, AffectsLossesButNotCheckpoints) {
  run("aware", {}, {.stage = "align"});
  args_["aware"] = "no";
  run("unaware", {}, {.stage = "align"});
  const auto aware = metrics(folder("aware")), unaware = metrics(folder("unaware"));
  const double one = aware.at(0)["loss"], other = unaware.at(0)["loss"];
  EXPECT_GT(std::abs(one - other), 1e-6) << one;
  EXPECT_LT(std::abs(one - other), 0.1) << "int8 is not that coarse";
  EXPECT_LT(aware.at(4)["loss"], aware.at(0)["loss"]);
  const auto file = Safetensors::open(last("aware") / "connector.safetensors");
  const TensorView& weight = file.at("dino_to_llm.weight");
  EXPECT_GT(off_grid(reinterpret_cast<const float*>(weight.data.data()), weight.shape.at(1)), 0.1)
      << "these are no real weights";
}

TEST_F(Quantization, ResumesToTheSameBits) {
  run("whole");
  for (int part = 0; part < 40; ++part)
    if (!run("parts", {}, {.max_steps = 1 + part % 4}).stopped) break;
  expect_equal_runs("whole", "parts");
}

TEST_F(Quantization, RollsBackToRealWeights) {
  Faults faults;
  faults.before_step = [&](const std::string&, int64_t step, model::Parameters& parameters) {
    if (step >= 4) parameters.at("q_static").gradient.fill_(std::numeric_limits<float>::infinity());
  };
  const auto report = run("a", {"guard.nonfinite_limit=2", "guard.rollback=true", "checkpoint.keep_last=9"},
                          {.stage = "align", .max_steps = 6, .faults = faults});
  ASSERT_EQ(report.step, 6);
  for (const char* file : {"vision/model.safetensors", "decoder/model.safetensors", "connector.safetensors"})
    EXPECT_TRUE(read_file(folder("a") / "align" / "step-000003" / file) ==
                read_file(folder("a") / "align" / "step-000006" / file))
        << file;
}

TEST_F(Quantization, KeepsFrozenWeightsAndQuantizesTheirUse) {
  const std::vector<std::string> frozen = {R"(stages.align.freeze=["decoder"])"};
  run("aware", frozen, {.stage = "align", .max_steps = 3});
  args_["aware"] = "no";
  run("unaware", frozen, {.stage = "align", .max_steps = 3});
  EXPECT_TRUE(read_file(last("aware") / "decoder/model.safetensors") ==
              read_file(last("unaware") / "decoder/model.safetensors"));
  EXPECT_FALSE(read_file(last("aware") / "connector.safetensors") ==
               read_file(last("unaware") / "connector.safetensors"));
}

TEST_F(Quantization, TakesTheLinearWeightsThatAreNotSkipped) {
  const c10::InferenceMode without_autograd;
  auto plan = resolved().plan;
  const auto model = make_model(describe(plan), 42, {});
  auto& parameters = model->parameters();
  const auto names = [&](std::vector<std::string> skip) {
    plan.quantization->skip = std::move(skip);
    return QuantizedWeights(plan, registry_, parameters, at::kCPU).names();
  };
  EXPECT_EQ(names({"vision.*", "decoder.*"}),
            (std::vector<std::string>{"connector.query_input_proj.weight", "connector.output_proj.weight",
                                      "connector.dino_to_llm.weight", "connector.llm_to_query.weight"}));
  EXPECT_EQ(names({"vision.*", "decoder.*", "connector.*_proj", "connector.dino_to_llm.weight"}),
            (std::vector<std::string>{"connector.llm_to_query.weight"}));
  EXPECT_EQ(names({"vision.encoder.layer.-2.*", "decoder.*", "connector.*"}),
            names({"vision.encoder.layer.0.*", "decoder.*", "connector.*"}));
  EXPECT_EQ(names({}).size(), 4u + 2 * 6 + 2 * 7) << "a tower's layer has 6 matrices, a decoder's 7";
  try {
    names({"*"});
    FAIL() << "nothing is left, and nobody minds";
  } catch (const Error& error) {
    EXPECT_EQ(error.where(), "quantization.skip");
  }

  plan.quantization->skip = {"vision.*", "*.llm_to_query"};
  QuantizedWeights quantized(plan, registry_, parameters, at::kCPU);
  std::map<std::string, at::Tensor> before;
  for (const auto& parameter : parameters.all()) before[parameter.name] = parameter.value.clone();
  quantized.quantize();
  const auto chosen = quantized.names();
  for (const auto& parameter : parameters.all()) {
    const bool is_chosen = std::find(chosen.begin(), chosen.end(), directory_name(parameter.name)) != chosen.end();
    EXPECT_EQ(parameter.value.equal(before[parameter.name]), !is_chosen) << parameter.name;
    if (is_chosen) {
      EXPECT_LT(off_grid(parameter.value), 1e-4) << parameter.name;
    }
  }
  quantized.restore(QuantizedWeights::Which::all);
  for (const auto& parameter : parameters.all())
    EXPECT_TRUE(parameter.value.equal(before[parameter.name])) << parameter.name;
}

TEST_F(Quantization, MissingQuantizerIsRefusedBeforeTheFirstStep) {
  const std::vector<std::string> sets = {"quantization.scheme=int3"};
  for (const bool rehearsed : {true, false}) {
    try {
      if (rehearsed)
        rehearse(resolved(sets), {.folder = folder("a")}, registry_);
      else
        run("a", sets);
      FAIL() << "it was not missed";
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::plugin);
      EXPECT_EQ(error.where(), "quantization.scheme");
      EXPECT_NE(error.text().find("int3"), std::string::npos) << error.text();
    }
  }
  EXPECT_FALSE(std::filesystem::exists(folder("a"))) << "a failed start leaves nothing";
  try {
    rehearse(resolved({R"(kernels.quantizer=["quantizer-fast"])"}), {.folder = folder("a")}, registry_);
    FAIL() << "it was not missed";
  } catch (const Error& error) {
    EXPECT_NE(error.text().find("quantizer-fast"), std::string::npos) << error.text();
  }
}

} // namespace
} // namespace fvlm::train
