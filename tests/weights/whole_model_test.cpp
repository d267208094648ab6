// Folders of whole models without Python: a tiny LLaVA goes in and out again, and damage of what the export needs is
// named. tests/model/whole_test.py compares with transformers.
#include "model/weights/transfer.h"
#include "model/weights/whole_model.h"
#include "weights/tiny_model.h"
#include "weights/workshop.h"

#include <gmock/gmock.h>

using namespace fvlm;
using namespace fvlm::testing_weights;
using testing::AllOf;
using testing::HasSubstr;

namespace {

const TransferProgress in_silence = [](uint64_t, uint64_t) {};

VisionConfig clip_config() {
  VisionConfig config;
  config.model_type = "clip_vision_model";
  config.hidden_size = 8, config.intermediate_size = 12;
  config.num_hidden_layers = config.num_attention_heads = 2;
  config.image_size = 8, config.patch_size = 4, config.num_channels = 3;
  config.layer_norm_eps = 1e-5, config.initializer_range = 0.3;
  config.hidden_act = "quick_gelu";
  return config;
}

nlohmann::json llava_config() {
  return {{"model_type", "llava"},
          {"architectures", {"LlavaForConditionalGeneration"}},
          {"torch_dtype", "float32"},
          {"vision_config", config_json(clip_config())},
          {"text_config", config_json(tiny::decoder_config())},
          {"tie_word_embeddings", true},
          {"image_token_index", 96}};
}

// A LLaVA's folder, whose tensors all differ.
class WholeFolder : public testing::Test {
 protected:
  WholeFolder() {
    fs::create_directories(source());
    put_file(source() / "config.json", llava_config().dump(2) + "\n");
    put_file(source() / "tokenizer.json", tiny::tokenizer_json);
    put_file(source() / "preprocessor_config.json", "{}");
    const ConnectorConfig mlp = read_connector_config({{"kind", "mlp"}}, "here");
    add("vision_tower.vision_model.", layout_of(clip_config()));
    add("multi_modal_projector.", layout_of(mlp, clip_config(), {tiny::decoder_config()}));
    add("language_model.", layout_of(tiny::decoder_config()));
    SafetensorsWriter writer(source() / "model.safetensors", tensors_);
    for (const TensorInfo& tensor : writer.order()) {
      std::vector<float> values(tensor.elements());
      initialize_weights(values, {Initializer::Kind::normal, 1}, 3, tensor.name);
      writer.append(std::as_bytes(std::span<const float>(values)));
    }
    writer.commit();
  }
  fs::path source() const { return folder_ / "llava"; }
  fs::path model() const { return folder_ / "model"; }
  void import() const { import_whole_model({.model = source(), .out = model(), .name = "tiny"}, in_silence); }
  std::string export_error() const {
    const std::string text =
        data_error_of([&] { export_whole_model(model(), folder_ / "out", std::nullopt, in_silence); });
    EXPECT_FALSE(fs::exists(folder_ / "out"));
    return text;
  }

  Folder folder_;

 private:
  void add(const std::string& prefix, const WeightLayout& layout) {
    for (const TensorSpec& spec : layout.tensors) tensors_.push_back({prefix + spec.name, DType::f32, spec.shape});
  }
  std::vector<TensorInfo> tensors_;
};

} // namespace

TEST_F(WholeFolder, GoesInAndOutWithEqualBytes) {
  import();
  ModelDirectory::open(model()).verify();
  const ModelDescription description = ModelDirectory::open(model()).description();
  EXPECT_EQ(description.encoder().vision_feature_layers, std::vector<int64_t>{-2});
  EXPECT_EQ(description.encoder().vision_feature_select_strategy, "default");
  EXPECT_EQ(description.connector()->name(), "mlp");
  EXPECT_EQ(description.decoder(), tiny::decoder_config());
  EXPECT_TRUE(fs::exists(model() / "vision/preprocessor_config.json"));
  EXPECT_FALSE(fs::exists(model() / "decoder/preprocessor_config.json"));

  export_whole_model(model(), folder_ / "out", std::nullopt, in_silence);
  for (const char* file : {"config.json", "tokenizer.json", "preprocessor_config.json", "model.safetensors"})
    EXPECT_EQ(read_file(source() / file), read_file(folder_ / "out" / file)) << file;
}

TEST_F(WholeFolder, AnExportOfAnExportIsTheSame) {
  import();
  export_model(model(), folder_ / "again", DType::f32, in_silence);
  export_whole_model(folder_ / "again", folder_ / "out", std::nullopt, in_silence);
  EXPECT_EQ(read_file(source() / "model.safetensors"), read_file(folder_ / "out/model.safetensors"));
}

TEST_F(WholeFolder, DamageOfWhatTheExportNeedsIsNamed) {
  import();
  const fs::path file = model() / "decoder" / HuggingFaceFolder::whole_model_file;
  const nlohmann::json good = nlohmann::json::parse(read_file(file));
  const auto error_with = [&](const std::function<void(nlohmann::json&)>& change) {
    nlohmann::json json = good;
    change(json);
    put_file(file, json.dump());
    return export_error();
  };
  EXPECT_THAT(error_with([](auto& json) { json.erase("tensors"); }), HasSubstr("'tensors' is missing"));
  EXPECT_THAT(error_with([](auto& json) { json["config"]["model_type"] = "dinov2"; }), HasSubstr("\"dinov2\""));
  EXPECT_THAT(error_with([](auto& json) { json["tensors"]["language_model.model.norm.weight"] = 7; }),
              AllOf(HasSubstr("\"language_model.model.norm.weight\" of the imported folder is not in the model"),
                    HasSubstr("\"decoder.model.norm.weight\" has no place")));
  EXPECT_THAT(error_with([](auto& json) { json["config"]["text_config"]["num_attention_heads"] = 2; }),
              HasSubstr("other kinds or sizes"));
  put_file(file, "[]");
  EXPECT_THAT(export_error(), HasSubstr("whole_model.json"));
}

TEST_F(WholeFolder, ATowerOfItsOwnIsNotAWholeModel) {
  nlohmann::json config = config_json(tiny::decoder_config());
  config["model_type"] = "dinov2";
  put_file(source() / "config.json", config.dump());
  EXPECT_THAT(data_error_of([&] { import(); }),
              AllOf(HasSubstr("\"dinov2\" is not supported as a whole model"), HasSubstr("--vision and --decoder")));
  EXPECT_FALSE(fs::exists(model()));
}
