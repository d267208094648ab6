#include "model/weights/layout.h"
#include "model/weights/safetensors_writer.h"
#include "model/weights/towers.h"
#include "weights/workshop.h"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <gmock/gmock.h>

using namespace fvlm;
using namespace fvlm::testing_weights;
using testing::AllOf;
using testing::HasSubstr;

namespace {

WeightLayout tiny_vision() {
  return layout_of(read_vision_config({{"model_type", "dinov2"},
                                       {"hidden_size", 4},
                                       {"num_hidden_layers", 1},
                                       {"num_attention_heads", 2},
                                       {"image_size", 4},
                                       {"patch_size", 2}},
                                      "config.json"));
}

WeightLayout tiny_decoder() {
  return layout_of(read_decoder_config({{"model_type", "llama"},
                                        {"hidden_size", 4},
                                        {"num_hidden_layers", 1},
                                        {"num_attention_heads", 2},
                                        {"intermediate_size", 6},
                                        {"vocab_size", 8},
                                        {"tie_word_embeddings", true}},
                                       "config.json"));
}

std::vector<TensorInfo> infos(const WeightLayout& layout, const std::string& prefix = "") {
  std::vector<TensorInfo> out;
  for (const TensorSpec& spec : layout.tensors) out.push_back({prefix + spec.name, DType::bf16, spec.shape});
  return out;
}

// A file of these tensors; the bytes of each begin with `first`.
Safetensors file_of(const Folder& folder, const std::vector<TensorInfo>& tensors, const std::string& marked = "") {
  SafetensorsWriter writer(folder / "model.safetensors", tensors);
  for (const TensorInfo& tensor : writer.order()) {
    std::vector<std::byte> bytes(tensor.byte_size());
    if (tensor.name == marked) bytes[0] = std::byte{1};
    writer.append(bytes);
  }
  writer.commit();
  return Safetensors::open(folder / "model.safetensors");
}

TensorInfo& named(std::vector<TensorInfo>& tensors, const std::string& name) {
  return *std::find_if(tensors.begin(), tensors.end(), [&](const TensorInfo& one) { return one.name == name; });
}

} // namespace

TEST(Layout, BindsTensorsInLayoutOrderWithAndWithoutThePrefix) {
  for (const char* prefix : {"", "dinov2."}) {
    Folder folder;
    WeightLayout layout = tiny_vision();
    auto tensors = infos(layout, prefix);
    tensors.push_back({"classifier.weight", DType::f32, {3, 8}});
    Safetensors file = file_of(folder, tensors);
    auto bound = bind(file, layout);
    ASSERT_EQ(bound.size(), layout.tensors.size());
    for (size_t i = 0; i < bound.size(); ++i) EXPECT_EQ(bound[i]->name, prefix + layout.tensors[i].name);
  }
}

TEST(Layout, ReportsMissingUnknownMisshapenAndIntegerTensorsAtOnce) {
  Folder folder;
  WeightLayout layout = tiny_vision();
  auto tensors = infos(layout);
  named(tensors, "embeddings.cls_token").name = "embeddings.class_token";
  named(tensors, "encoder.layer.0.mlp.fc1.weight").shape = {4, 16};
  named(tensors, "layernorm.bias").dtype = DType::i16;
  std::string text = data_error_of([&] { bind(file_of(folder, tensors), layout); });
  EXPECT_THAT(text, AllOf(HasSubstr("4 things are wrong"), HasSubstr("\"embeddings.class_token\" is not one of"),
                          HasSubstr("\"embeddings.cls_token\" is missing"),
                          HasSubstr("\"encoder.layer.0.mlp.fc1.weight\" has the shape [4, 16], and must have [16, 4]"),
                          HasSubstr("\"layernorm.bias\" holds I16")));
}

TEST(Layout, MaskTokenIsOptional) {
  Folder folder;
  WeightLayout layout = tiny_vision();
  auto tensors = infos(layout);
  std::erase_if(tensors, [](const TensorInfo& one) { return one.name == "embeddings.mask_token"; });
  Safetensors file = file_of(folder, tensors);
  auto bound = bind(file, layout);
  for (size_t i = 0; i < bound.size(); ++i) EXPECT_EQ(bound[i] != nullptr, layout.tensors[i].parameter);
  named(tensors, "layernorm.bias").name = "embeddings.mask_token";
  EXPECT_THAT(data_error_of([&] { bind(file_of(folder, tensors), layout); }),
              AllOf(HasSubstr("\"embeddings.mask_token\" has the shape [4], and must have [1, 4]"),
                    HasSubstr("\"layernorm.bias\" is missing")));
}

TEST(Layout, IgnoresBuffersOfOldFiles) {
  Folder folder;
  auto tensors = infos(tiny_decoder());
  tensors.push_back({"model.layers.0.self_attn.rotary_emb.inv_freq", DType::f32, {1}});
  EXPECT_NO_THROW(bind(file_of(folder, tensors), tiny_decoder()));
  tensors.back().name = "model.layers.0.self_attn.rotary_emb.other";
  EXPECT_THAT(data_error_of([&] { bind(file_of(folder, tensors), tiny_decoder()); }), HasSubstr("rotary_emb.other"));
}

TEST(Layout, TiedHeadMayBeStoredIfEqual) {
  Folder folder;
  auto tensors = infos(tiny_decoder());
  tensors.push_back({"lm_head.weight", DType::bf16, {8, 4}});
  EXPECT_NO_THROW(bind(file_of(folder, tensors), tiny_decoder()));
  EXPECT_THAT(data_error_of([&] { bind(file_of(folder, tensors, "lm_head.weight"), tiny_decoder()); }),
              HasSubstr("\"lm_head.weight\" differs from \"model.embed_tokens.weight\""));
}

TEST(Layout, UntiedHeadIsRequired) {
  Folder folder;
  DecoderConfig config = read_decoder_config({{"model_type", "llama"},
                                              {"hidden_size", 4},
                                              {"num_hidden_layers", 1},
                                              {"num_attention_heads", 2},
                                              {"intermediate_size", 6},
                                              {"vocab_size", 8}},
                                             "c");
  EXPECT_THAT(data_error_of([&] { bind(file_of(folder, infos(tiny_decoder())), layout_of(config)); }),
              HasSubstr("\"lm_head.weight\" is missing"));
}

TEST(Layout, ModelOfAnotherDepthNamesABoundedNumberOfTensors) {
  Folder folder;
  DecoderConfig config = read_decoder_config({{"model_type", "llama"},
                                              {"hidden_size", 4},
                                              {"num_hidden_layers", 20},
                                              {"num_attention_heads", 2},
                                              {"intermediate_size", 6},
                                              {"vocab_size", 8}},
                                             "c");
  std::string text = data_error_of([&] { bind(file_of(folder, infos(tiny_decoder())), layout_of(config)); });
  EXPECT_THAT(text, AllOf(HasSubstr("172 things are wrong"), HasSubstr("model.layers.1.input_layernorm"),
                          HasSubstr("and 132 more")));
}
