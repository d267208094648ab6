// Model directories with a list of parts, and those of before, which had none.
#include "model/weights/transfer.h"
#include "weights/format_1.h"
#include "weights/foveated.h"
#include "weights/tiny_model.h"
#include "weights/workshop.h"

#include <gmock/gmock.h>

using namespace fvlm;
using namespace fvlm::testing_weights;
using testing::AllOf;
using testing::HasSubstr;

namespace {

const TransferProgress no_progress = [](uint64_t, uint64_t) {};

// Written by the last version that wrote format 1.
const fs::path format_1_folder = FVLM_TEST_FORMAT_1;

// A tiny encoder, and two decoders of different widths behind a connector each.
ModelDescription two_decoders() {
  DecoderConfig wide = tiny::decoder_config();
  wide.hidden_size = 32, wide.num_attention_heads = 8;
  const auto folder = [](const auto& config) {
    HuggingFaceFolder out;
    out.config = config_json(config);
    return out;
  };
  ModelDescription description;
  description.name = "two";
  description.parts = {
      {"bytes", tiny::vision_config(), folder(tiny::vision_config())},
      {"to-small", foveated(6), {}, {}, "bytes", "small"},
      {"to-wide", foveated(4), {}, {}, "", "wide"},
      {"small", tiny::decoder_config(), folder(tiny::decoder_config())},
      {"wide", wide, folder(wide)},
  };
  return description;
}

void write_two_decoders(const fs::path& path) {
  ModelDirectoryWriter writer(path, two_decoders(), [](const std::string&) { return DType::f32; });
  std::byte number{1};
  for (const TensorInfo& tensor : writer.order()) {
    writer.append(std::vector<std::byte>(tensor.byte_size(), number));
    number = static_cast<std::byte>(static_cast<int>(number) % 100 + 1);
  }
  writer.commit();
}

// What opening says of a model whose fvlm.json was changed.
class ChangedParts : public testing::Test {
 protected:
  ChangedParts() {
    tiny::write_towers(folder_.path());
    import_model({.vision = folder_ / "vision", .decoder = folder_ / "decoder", .out = folder_ / "model"}, no_progress);
    good_ = nlohmann::json::parse(read_file(file()));
  }
  fs::path file() const { return folder_ / "model/fvlm.json"; }
  // `change` gets the list of parts.
  std::string error_with(const std::function<void(nlohmann::json&)>& change) const {
    nlohmann::json json = good_;
    change(json["parts"]);
    put_file(file(), json.dump());
    return data_error_of([&] { ModelDirectory::open(folder_ / "model"); });
  }

  Folder folder_;
  nlohmann::json good_;
};

} // namespace

TEST(Parts, FormatOneIsReadExactly) {
  const ModelDirectory model = ModelDirectory::open(format_1_folder);
  model.verify();
  const ModelDescription& description = model.description();
  EXPECT_EQ(description.name, "format_1");
  EXPECT_EQ(description.encoder().model_type, "dinov2");
  EXPECT_EQ(description.decoder().vocab_size, 3);
  EXPECT_EQ(config_json(description.connector()), config_json(foveated(2)));
  std::vector<std::string> names;
  for (const ModelPart& part : description.parts) names.push_back(part.name);
  EXPECT_THAT(names, testing::ElementsAre("vision", "connector", "decoder"));
  EXPECT_EQ(decoder_folder(format_1_folder), format_1_folder / "decoder");
}

TEST(Parts, AnExportOfFormatOneHasTheSameTensorsAndListsItsParts) {
  Folder folder;
  export_model(format_1_folder, folder / "new", DType::f32, no_progress);
  for (const char* file : {"vision/model.safetensors", "vision/config.json", "decoder/model.safetensors",
                           "decoder/config.json", "decoder/tokenizer.json", "connector.safetensors"})
    EXPECT_TRUE(read_file(folder / "new" / file) == read_file(format_1_folder / file)) << file;
  const std::string text = read_file(folder / "new/fvlm.json");
  EXPECT_EQ(as_format_1(text), read_file(format_1_folder / "fvlm.json"));
  const auto json = nlohmann::json::parse(text);
  EXPECT_EQ(json["format_version"], 2) << "readers of format 1 say that they are too old";
  EXPECT_EQ(json["parts"], nlohmann::json::parse(R"([
    {"name": "vision", "role": "encoder", "folder": "vision", "model_type": "dinov2"},
    {"name": "connector", "role": "connector", "file": "connector.safetensors",
     "config": {"kind": "fvlm", "query_dim": 2, "visual_scale": 0.14, "attend": "deep"}},
    {"name": "decoder", "role": "decoder", "folder": "decoder", "model_type": "llama"}])"));
}

TEST(Parts, TwoDecodersWithAConnectorEach) {
  Folder folder;
  write_two_decoders(folder / "two");
  const ModelDirectory model = ModelDirectory::open(folder / "two");
  model.verify();
  EXPECT_EQ(model.at("to-small.dino_to_llm.weight").view->shape, (std::vector<int64_t>{16, 8}));
  EXPECT_EQ(model.at("to-wide.dino_to_llm.weight").view->shape, (std::vector<int64_t>{32, 8}));
  EXPECT_EQ(model.at("wide.model.norm.weight").view->shape, (std::vector<int64_t>{32}));
  EXPECT_EQ(model.description().encoder(), tiny::vision_config());
  for (const auto& use : std::vector<std::function<void()>>{[&] { (void)model.description().decoder(); },
                                                            [&] { (void)decoder_folder(folder / "two"); }})
    EXPECT_THAT(data_error_of(use), HasSubstr("2 decoders"));
  EXPECT_THAT(data_error_of([&] { (void)model.description().decoder(); }), HasSubstr("small, wide"));

  const TransferReport report = export_model(folder / "two", folder / "half", DType::bf16, no_progress);
  ASSERT_EQ(report.parts.size(), 5U);
  EXPECT_EQ(report.parts[4].name, "wide");
  const ModelDirectory half = ModelDirectory::open(folder / "half");
  half.verify();
  EXPECT_EQ(half.parameters().size(), model.parameters().size());
  EXPECT_EQ(half.description().parts[1].decoder, "small");
  EXPECT_EQ(half.description().parts[2].encoder, "");
}

TEST_F(ChangedParts, AreRefusedWithWhatIsWrong) {
  EXPECT_THAT(error_with([](auto& parts) { parts = nullptr; }), HasSubstr("'parts' is missing or no list"));
  EXPECT_THAT(error_with([](auto& parts) { parts[1] = "connector"; }), HasSubstr("parts[1] is no object"));
  EXPECT_THAT(error_with([](auto& parts) { parts[0].erase("name"); }), HasSubstr("parts[0]: 'name' is missing"));
  EXPECT_THAT(error_with([](auto& parts) { parts[0]["name"] = "a.b"; }),
              AllOf(HasSubstr("\"a.b\""), HasSubstr("letters")));
  EXPECT_THAT(error_with([](auto& parts) { parts[0]["role"] = "vocoder"; }),
              AllOf(HasSubstr("\"vocoder\""), HasSubstr("encoder, connector and decoder")));
  EXPECT_THAT(error_with([](auto& parts) { parts[2]["folder"] = "../decoder"; }),
              AllOf(HasSubstr("\"../decoder\""), HasSubstr("inside the model directory")));
  EXPECT_THAT(error_with([](auto& parts) { parts[2]["folder"] = "/decoder"; }),
              HasSubstr("inside the model directory"));
  EXPECT_THAT(error_with([](auto& parts) { parts[2]["flavour"] = "sweet"; }), HasSubstr("\"flavour\" is unknown"));
  EXPECT_THAT(error_with([](auto& parts) { parts[1].erase("config"); }), HasSubstr("parts[1]: 'config' is missing"));
  EXPECT_THAT(error_with([](auto& parts) { parts[2]["name"] = "vision"; }),
              HasSubstr("there are two parts named \"vision\""));
  EXPECT_THAT(error_with([](auto& parts) { parts[0]["model_type"] = "clip_vision_model"; }),
              AllOf(HasSubstr("model_type is \"dinov2\""), HasSubstr("\"clip_vision_model\"")));
  EXPECT_THAT(error_with([](auto& parts) { parts[0]["role"] = "decoder"; }), HasSubstr("not supported as decoder"));
  EXPECT_THAT(error_with([](auto& parts) { parts[1]["decoder"] = "other"; }),
              AllOf(HasSubstr("the connector \"connector\" names the decoder \"other\"")));
  EXPECT_THAT(error_with([](auto& parts) { parts.erase(2); }), HasSubstr("the model has no decoder"));
}

TEST_F(ChangedParts, OfFormatOneDoNotMixWithAList) {
  nlohmann::json json = good_;
  json["format_version"] = 1;
  put_file(file(), json.dump());
  EXPECT_THAT(data_error_of([&] { ModelDirectory::open(folder_ / "model"); }),
              AllOf(HasSubstr("\"parts\" is unknown"), HasSubstr("'connector' is missing")));
}
