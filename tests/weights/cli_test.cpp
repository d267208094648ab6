// The verbs import and export, and the tool that converts public releases, as a user runs them.
#include "model/weights/model_directory.h"
#include "model/weights/transfer.h"
#include "weights/tiny_model.h"
#include "weights/workshop.h"

#include <gtest/gtest.h>

#include <cstdio>
#include <gmock/gmock.h>
#include <sys/wait.h>

using namespace fvlm;
using namespace fvlm::testing_weights;
using testing::AllOf;
using testing::HasSubstr;

namespace {

struct Outcome {
  int code;
  std::string out, err;
};

Outcome run(const Folder& folder, const std::string& command) {
  std::string full = fmt::format("cd '{}' && {} >out 2>err", folder.path().string(), command);
  int status = std::system(full.c_str());
  return {WEXITSTATUS(status), read_file(folder / "out"), read_file(folder / "err")};
}

Outcome engine(const Folder& folder, const std::string& arguments) {
  return run(folder, std::string(FVLM_TEST_ENGINE) + " " + arguments);
}

constexpr const char* import_tiny = "import --vision vision --decoder decoder --query-dim 6 --out model ";

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

TEST(WeightsCli, import_and_export_write_model_directories) {
  Folder folder;
  tiny::write_towers(folder.path());
  Outcome imported = engine(folder, std::string(import_tiny) + "--seed 5 --visual-scale 0.5 --shallow --json");
  ASSERT_EQ(imported.code, 0) << imported.err;
  auto report = nlohmann::json::parse(imported.out);
  EXPECT_EQ(report["parts"]["connector"]["parameters"], 12 + 48 + 72 + 144 + 102);
  EXPECT_EQ(report["parts"]["decoder"]["tensors"]["fp32"], 20);
  ModelDescription description = ModelDirectory::open(folder / "model").description();
  EXPECT_EQ(description.name, "model");
  EXPECT_EQ(description.connector, (ConnectorConfig{6, 0.5, true}));

  Outcome exported = engine(folder, "export model/ --out half --dtype bf16");
  ASSERT_EQ(exported.code, 0) << exported.err;
  EXPECT_THAT(exported.out, AllOf(HasSubstr("connector"), HasSubstr("bf16")));
  EXPECT_EQ(exported.err, "") << "no progress where there is no terminal";
  import_model({.vision = folder / "vision",
                .decoder = folder / "decoder",
                .out = folder / "expected",
                .connector_config = {6, 0.5, true},
                .seed = 5,
                .dtype = DType::bf16,
                .name = "model"},
               [](uint64_t, uint64_t) {});
  EXPECT_TRUE(same_tensors(folder / "half", folder / "expected"));
  EXPECT_EQ(ModelDirectory::open(folder / "half").description().name, "model");
}

TEST(WeightsCli, wrong_options_are_usage_errors_and_wrong_files_data_errors) {
  Folder folder;
  tiny::write_towers(folder.path());
  auto expect = [&](const std::string& arguments, int code, const char* words) {
    Outcome result = engine(folder, arguments);
    EXPECT_EQ(result.code, code) << arguments;
    EXPECT_THAT(result.err, HasSubstr(words)) << arguments;
  };
  expect("import --vision vision --out model", 2, "--decoder is missing");
  expect("import --vison vision", 2, "did you mean '--vision'");
  expect(std::string(import_tiny) + "--dtype int8", 2, "fp32, bf16 or fp16");
  expect(std::string(import_tiny) + "--seed -1", 2, "--seed");
  expect(std::string(import_tiny) + "--visual-scale 0", 2, "--visual-scale");
  expect(std::string(import_tiny) + "--connector vision/model.safetensors", 2, "brings its query_dim");
  expect("import --vision decoder --decoder vision --out model", 4, "\"llama\" is not supported as vision tower");
  expect("import --vision nowhere --decoder decoder --out model", 4, "no such folder");
  expect("export vision --out half --dtype bf16", 4, "no fvlm.json");
  expect("export vision --out half", 2, "--dtype is missing");
  EXPECT_FALSE(fs::exists(folder / "model"));
  EXPECT_EQ(engine(folder, import_tiny).code, 0);
  expect(import_tiny, 4, "something here already");
  EXPECT_THAT(engine(folder, "import --help").out, testing::StartsWith("Example\n"));
  EXPECT_THAT(engine(folder, "export --help").out, testing::StartsWith("Example\n"));
}

TEST(ConvertRelease, every_form_of_a_release_becomes_the_model_it_was_made_of) {
  skip_without("safetensors");
  if (IsSkipped()) return;
  Folder folder;
  tiny::write_towers(folder.path());
  put_file(folder / "decoder/tokenizer.json", "{}");
  ASSERT_EQ(engine(folder, import_tiny).code, 0);
  Outcome made = run(folder, fmt::format("'{}' -B '{}' model .", FVLM_PYTHON, FVLM_TEST_CHECKPOINTS));
  ASSERT_EQ(made.code, 0) << made.err;
  // Configs and tokenizer come from here; its weights are another model's.
  tiny::write_towers(folder / "other", 99);
  fs::copy_file(folder / "decoder/tokenizer.json", folder / "other/decoder/tokenizer.json");
  auto convert_release = [&](const std::string& name) {
    return run(folder,
               fmt::format("'{}' -B '{}' {}.pt --vision other/vision --decoder other/decoder --out {} --engine '{}'",
                           FVLM_PYTHON, FVLM_TEST_CONVERT, name, name, FVLM_TEST_ENGINE));
  };
  for (const char* name : {"plain", "nested", "other_names"}) {
    Outcome converted = convert_release(name);
    ASSERT_EQ(converted.code, 0) << name << converted.err;
    EXPECT_TRUE(same_tensors(folder / "model", folder / name)) << name;
    EXPECT_TRUE(fs::exists(folder / name / "decoder/tokenizer.json"));
  }
  auto expect = [&](const std::string& name, std::vector<std::string> words) {
    Outcome converted = convert_release(name);
    EXPECT_NE(converted.code, 0) << name;
    for (const std::string& word : words) EXPECT_THAT(converted.err, HasSubstr(word)) << name;
    EXPECT_FALSE(fs::exists(folder / name)) << name;
  };
  expect("unknown", {"unknown: encoder.query_input_proj.bias", "unknown: lora.a", "missing: q_static"});
  expect("contradiction", {"two different tensors for connector's q_init"});
  expect("shallow_tower", {"\"encoder.layer.1.norm2.weight\" is missing", "\"encoder.layer.1.norm2.bias\" is missing"});
}
