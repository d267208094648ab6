// A family of encoders or decoders as far as it is known without LibTorch: the Hugging Face models it reads, what their
// configs mean, and what tensors they consist of. For config.cpp of encoder/<name>/ and decoder/<name>/.
#pragma once
#include "base/config_reader.h"
#include "model/weights/blocks.h"

#include <nlohmann/json.hpp>

#include <string>
#include <vector>

namespace fvlm {

template <class Config>
struct ModelFamily {
  struct Type {
    const char* model_type;   // of config.json: "llama"
    const char* architecture; // the class of transformers that loads such a folder: "LlamaForCausalLM"
    // The model_type of a config.json that has this one as its vision_config: "clip"; null: there is none.
    const char* whole = nullptr;
  };
  std::string name; // of its folder and of its line in encoders.inc or decoders.inc
  std::vector<Type> types;
  // Notes problems in the reader. Its ranges bound what layout() allocates. `model_type` is one of `types`.
  Config (*read)(ConfigReader& reader, const std::string& model_type);
  // All but model_type and architectures.
  nlohmann::json (*write)(const Config& config);
  WeightLayout (*layout)(const Config& config);
  std::vector<FusedNames> fused_weights;
  // Of an encoder: the tokens that it makes of a frame of this size. Null for a decoder.
  int64_t (*tokens_per_frame)(const Config& config, int64_t height, int64_t width) = nullptr;
};
using EncoderFamily = ModelFamily<VisionConfig>;
using DecoderFamily = ModelFamily<DecoderConfig>;

// The family of a config's model_type. Throws Error(data) if there is none.
const EncoderFamily& family_of(const VisionConfig& config);
const DecoderFamily& family_of(const DecoderConfig& config);

// The model_types of all families of decoders.
std::vector<std::string> decoder_types();

// For a program that adds families to those of encoders.inc and decoders.inc; it also has to register how they are
// made, as model::register_encoder() and model::register_decoder() do.
void add_family(EncoderFamily family);
void add_family(DecoderFamily family);

// Bounds on what a config may ask for, far above any model there is.
constexpr int64_t most_layers = 1024, most_heads = 1 << 16, most_features = 1 << 20;

} // namespace fvlm
