// The verbs import and export, and the tool that converts public releases, as a user runs them.
#include "../shell.h"
#include "model/weights/model_directory.h"
#include "model/weights/transfer.h"
#include "weights/foveated.h"
#include "weights/tiny_model.h"
#include "weights/workshop.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <gmock/gmock.h>

using namespace fvlm;
using namespace fvlm::testing_weights;
using testing::AllOf;
using testing::HasSubstr;

namespace {

test::Ran run(const Folder& folder, const std::string& command) {
  return test::shell(fmt::format("cd '{}' && {}", folder.path().string(), command));
}

test::Ran engine(const Folder& folder, const std::string& arguments) {
  return run(folder, std::string(FVLM_TEST_ENGINE) + " " + arguments);
}

constexpr const char* import_words = "import --vision vision --decoder decoder --query-dim 6 --out model ";

bool same_tensors(const fs::path& a, const fs::path& b) {
  ModelDirectory left = ModelDirectory::open(a), right = ModelDirectory::open(b);
  left.verify();
  right.verify();
  for (const Parameter& parameter : left.parameters()) {
    const Parameter& other = right.at(parameter.name);
    if (parameter.view->dtype != other.view->dtype || !std::ranges::equal(parameter.view->data, other.view->data))
      return false;
  }
  return left.parameters().size() == right.parameters().size();
}

} // namespace

TEST(WeightsCli, ImportAndExportWriteModelDirectories) {
  Folder folder;
  tiny::write_towers(folder.path());
  test::Ran imported = engine(folder, std::string(import_words) + "--seed 5 --visual-scale 0.5 --shallow --json");
  ASSERT_EQ(imported.code, 0) << imported.err;
  auto report = nlohmann::json::parse(imported.out);
  EXPECT_EQ(report["parts"]["connector"]["parameters"], 12 + 48 + 72 + 144 + 102);
  EXPECT_EQ(report["parts"]["decoder"]["tensors"]["fp32"], 20);
  ModelDescription description = ModelDirectory::open(folder / "model").description();
  EXPECT_EQ(description.name, "model");
  EXPECT_EQ(config_json(description.connector()), config_json(foveated(6, 0.5, connector::Attend::shallow)));

  test::Ran exported = engine(folder, "export model/ --out half --dtype bf16");
  ASSERT_EQ(exported.code, 0) << exported.err;
  EXPECT_THAT(exported.out, AllOf(HasSubstr("connector"), HasSubstr("bf16")));
  EXPECT_EQ(exported.err, "") << "no progress where there is no terminal";
  import_model({.vision = folder / "vision",
                .decoder = folder / "decoder",
                .out = folder / "expected",
                .connector_config = foveated(6, 0.5, connector::Attend::shallow),
                .seed = 5,
                .dtype = DType::bf16,
                .name = "model"},
               [](uint64_t, uint64_t) {});
  EXPECT_TRUE(same_tensors(folder / "half", folder / "expected"));
  EXPECT_EQ(ModelDirectory::open(folder / "half").description().name, "model");
}

TEST(WeightsCli, FolderNamesThatAreNoUtf8AreInJson) {
  Folder folder;
  tiny::write_towers(folder.path());
  test::Ran imported = engine(folder, "import --vision vision --decoder decoder --out caf\xe9 --json");
  ASSERT_EQ(imported.code, 0) << imported.err;
  EXPECT_EQ(nlohmann::json::parse(imported.out)["model"], "caf\uFFFD");
  EXPECT_EQ(ModelDirectory::open(folder / "caf\xe9").description().name, "caf\uFFFD");
}

TEST(WeightsCli, WrongOptionsAreUsageErrorsAndWrongFilesDataErrors) {
  Folder folder;
  tiny::write_towers(folder.path());
  auto expect = [&](const std::string& arguments, int code, const char* words) {
    test::Ran result = engine(folder, arguments);
    EXPECT_EQ(result.code, code) << arguments;
    EXPECT_THAT(result.err, HasSubstr(words)) << arguments;
  };
  expect("import --vision vision --out model", 2, "--decoder is missing");
  expect("import --vison vision", 2, "did you mean '--vision'");
  expect(std::string(import_words) + "--dtype int8", 2, "fp32, bf16 or fp16");
  expect(std::string(import_words) + "--seed -1", 2, "--seed");
  expect(std::string(import_words) + "--visual-scale 0", 2, "--visual-scale");
  expect(std::string(import_words) + "--connector vision/model.safetensors", 2,
         "--connector excludes --query-dim and --seed");
  expect("import --vision decoder --decoder vision --out model", 4, "\"llama\" is not supported as vision tower");
  expect("import --vision nowhere --decoder decoder --out model", 4, "no such folder");
  put_file(folder / "vision/preprocessor_config.json", R"({"image_processor_type": "FooImageProcessor"})");
  expect("import --vision decoder --decoder decoder --out model", 4, "it is that of the other part, a decoder");
  expect("export vision --out half --dtype bf16", 4, "no fvlm.json");
  expect("export vision --out half", 2, "--dtype is missing");
  EXPECT_FALSE(fs::exists(folder / "model"));
  EXPECT_EQ(engine(folder, import_words).code, 0);
  expect(import_words, 7, "already exists");
  EXPECT_THAT(engine(folder, "import --help").out, testing::StartsWith("Example\n"));
  EXPECT_THAT(engine(folder, "export --help").out, testing::StartsWith("Example\n"));
}

TEST(WeightsCli, ADecoderWithoutATokenizerThatCanBeReadIsRefused) {
  Folder folder;
  tiny::write_towers(folder.path());
  const auto refused = [&](const std::vector<std::string>& words) {
    const test::Ran ran = engine(folder, import_words);
    EXPECT_EQ(ran.code, 4);
    for (const std::string& word : words) EXPECT_THAT(ran.err, HasSubstr(word));
    EXPECT_FALSE(fs::exists(folder / "model"));
  };
  put_file(folder / "decoder/tokenizer.json", R"({"model": {"type": "WordPiece", "vocab": {"a": 0}},
                                                  "pre_tokenizer": {"type": "BertPreTokenizer"}})");
  refused({"decoder/tokenizer.json", "WordPiece"});
  fs::remove(folder / "decoder/tokenizer.json");
  refused({"the decoder has no tokenizer.json", "copy the tokenizer.json"});
}

// A model directory, what a script makes of it, and folders of the same towers with other weights to convert with.
struct Releases {
  explicit Releases(const char* script) {
    tiny::write_towers(folder.path());
    EXPECT_EQ(engine(folder, import_words).code, 0);
    test::Ran made = run(folder, fmt::format("'{}' -B '{}/{}' model .", FVLM_PYTHON, FVLM_TEST_SCRIPTS, script));
    EXPECT_EQ(made.code, 0) << made.err;
    tiny::write_towers(folder / "other", 99);
  }
  test::Ran convert(const std::string& file) {
    return run(folder,
               fmt::format("'{}' -B '{}' {} --vision other/vision --decoder other/decoder --out '{}' --engine '{}'",
                           FVLM_PYTHON, FVLM_TEST_CONVERT, file, made_of(file).string(), FVLM_TEST_ENGINE));
  }
  fs::path made_of(const std::string& file) { return folder / ("of " + file); }
  void expect_model(const std::string& file) {
    test::Ran converted = convert(file);
    ASSERT_EQ(converted.code, 0) << file << converted.err;
    EXPECT_TRUE(same_tensors(folder / "model", made_of(file))) << file;
    EXPECT_TRUE(fs::exists(made_of(file) / "decoder/tokenizer.json"));
  }
  void expect_refusal(const std::string& file, const std::vector<std::string>& words) {
    test::Ran converted = convert(file);
    EXPECT_NE(converted.code, 0) << file;
    for (const std::string& word : words) EXPECT_THAT(converted.err, HasSubstr(word)) << file;
    EXPECT_THAT(converted.err, testing::Not(HasSubstr("Traceback"))) << file;
    EXPECT_FALSE(fs::exists(made_of(file))) << file;
  }
  Folder folder;
};

TEST(ConvertRelease, EveryFormOfAReleaseGivesTheOriginalModel) {
  skip_without("safetensors");
  if (IsSkipped()) return;
  Releases releases("release_checkpoints.py");
  for (const char* file : {"plain.pt", "nested.pt", "other_names.pt"}) releases.expect_model(file);
  releases.expect_refusal("unknown.pt",
                          {"unknown: encoder.query_input_proj.bias", "unknown: lora.a", "missing: q_static"});
  releases.expect_refusal("contradiction.pt", {"two different tensors for connector's q_init"});
  releases.expect_refusal("shallow_tower.pt",
                          {"\"encoder.layer.1.norm2.weight\" is missing", "\"encoder.layer.1.norm2.bias\" is missing"});
}

TEST(ConvertRelease, FilesOfAModuleWithTransformersTowers) {
  skip_without("transformers");
  if (IsSkipped()) return;
  Releases releases("release_module.py");
  for (const char* file :
       {"released.pt", "torch.safetensors", "published.safetensors", "training.pt", "old_format.pt", "compiled.pt"})
    releases.expect_model(file);
  const auto scale_of = [&](const char* file) {
    const ConnectorConfig made = ModelDirectory::open(releases.made_of(file)).description().connector();
    return made.as<connector::Foveated>()->visual_scale;
  };
  EXPECT_EQ(scale_of("released.pt"), 0.14);
  EXPECT_EQ(scale_of("training.pt"), 0.25) << "that of the run's config";

  ASSERT_EQ(releases.convert("mixed.pt").code, 0);
  const ModelDirectory mixed = ModelDirectory::open(releases.made_of("mixed.pt"));
  EXPECT_EQ(mixed.at("decoder.model.norm.weight").view->dtype, DType::bf16);
  EXPECT_EQ(mixed.at("vision.layernorm.weight").view->dtype, DType::f32);

  releases.expect_refusal("ablation.pt", {"deep_query: false"});
  releases.expect_refusal("pickled.pt", {"more than tensors", "Foveated", "state_dict()"});
  releases.expect_refusal("damaged.pt", {"damaged.pt is damaged"});
  releases.expect_refusal("page.pt", {"page.pt is neither what torch.save() writes nor safetensors"});
  releases.expect_refusal("optimizer.pt", {"holds no tensor, but optimizer_state_dict, step"});
  releases.expect_refusal("nowhere.pt", {"there is no file nowhere.pt"});
}
