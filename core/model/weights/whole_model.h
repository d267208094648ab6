// Hugging Face folders of one model that has an encoder, a connector and a decoder, such as LLaVA and SmolVLM, or a
// decoder alone: opened as the parts of a model directory, and put together again. Which there are: the table in
// whole_models.cpp, and every decoder.
#pragma once
#include "base/config_reader.h"
#include "model/weights/model_directory.h"

#include <nlohmann/json.hpp>

#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <vector>

namespace fvlm {

// A row of the table: what a folder of this model_type says of its parts, and what it calls their tensors.
struct WholeModelFamily {
  // config.json of each part, as a folder of its own would have it, and the connector's config.
  struct Configs {
    nlohmann::json vision, decoder, connector;
    int64_t image_token_id; // stands in a text for one visual row; -1: the model reads text alone
  };
  // Tensors whose names begin with `in_file` are those of the parts that begin with `in_parts`. Where several fit, it
  // is the first that the file has, so longer ones stand before what they begin with.
  struct Prefix {
    std::string in_file, in_parts;
  };
  // Tensors whose names have `in_file` inside are the rows of several, whose names have one of `parts` there.
  struct Fused {
    std::string in_file;
    std::vector<std::string> parts;
  };
  std::string model_type; // of config.json
  // Notes problems in the reader. The keys of the parts are checked by whoever reads the parts.
  Configs (*read)(ConfigReader& reader);
  std::vector<Prefix> names;
  // Whether, where config.json does not say it, the output head is the embedding unless the file has one.
  bool head_decides_tying = false;
  // The key of a part that is left out, so that an exported config.json has null there; null: there is none.
  const char* left_out = nullptr;
  // Their parts are what `names` are of.
  std::vector<Fused> fused = {};
};

const std::vector<WholeModelFamily>& whole_model_families(); // whole_models.cpp
// The row of a config.json. Throws Error(data) at `where` for another model_type.
const WholeModelFamily& whole_model_family(const nlohmann::json& config, const std::string& where);

// The encoder `vision`, the `connector` and the `decoder` of such a config.json. Folders have their config alone.
struct WholeModelParts {
  std::vector<ModelPart> parts;
  int64_t image_token_id;
};
// Throws Error(data) at `where` for another model_type, and for what is wrong or not supported.
WholeModelParts read_whole_config(const nlohmann::json& config, const std::string& where);

struct WholeModel {
  ModelDescription description;
  int64_t image_token_id;
  Safetensors file;
  std::map<std::string, const TensorView*> tensors; // by their names in the model directory, those that are there
  WeightSchemes schemes;                            // by weights' names in the model directory

  // The folder of the encoder has the files of the image processor, that of the decoder all others and what assemble()
  // needs. Throws Error(data) that names every tensor that is missing, unknown or misshapen.
  static WholeModel open(const std::filesystem::path& path);
};

// What the folder that a model directory was imported from had: its config.json, and each tensor.
struct WholeModelForm {
  nlohmann::json config;
  std::map<std::string, const TensorView*> tensors; // by their names in the folder
  WeightLayout quantized;                           // of these, what quantized weights consist of
  // Of these, such as are not in the directory as they are.
  struct Joined {
    TensorView view;
    std::vector<std::byte> bytes;
  };
  std::vector<std::unique_ptr<Joined>> joined = {};
};
// Throws Error(data) for a directory that was not imported from such a folder, or has other parts by now.
WholeModelForm assemble(const ModelDirectory& directory);

} // namespace fvlm
