// What llama.cpp can have of a kind of whole models, and how it calls and stores what it shows the decoder of images.
#pragma once
#include "base/problems.h"
#include "data/media/image_processor.h"
#include "gguf/file.h"
#include "gguf/names.h"
#include "model/weights/model_directory.h"

#include <fmt/format.h>

#include <optional>
#include <string>
#include <vector>

namespace fvlm::gguf {

// Sets keys that begin with "clip.vision.".
struct VisionKeys {
  File& file;

  void set(const std::string& key, Value value) { file.set("clip.vision." + key, std::move(value)); }
  void size(const std::string& key, int64_t value) { set(key, static_cast<uint32_t>(value)); }
};

struct VisionFamily {
  const char *connector, *projector;    // ours, and llama.cpp's
  std::vector<std::string> model_types; // of the folders that such a model is imported from
  std::vector<Name> names;              // of the connector's modules
  std::vector<std::string> shifted;     // of these, to which llama.cpp adds no 1

  bool rms_norm = false;
  bool fused_qkv = false;      // queries, keys and values are one product
  bool adjacent_pairs = false; // rotary positions turn neighbouring features
  double rope_theta = 10000;   // of rotations, where there are some
  int64_t cell_frames = 0;     // how many frames of a video the embedding of cells of 2 x 2 patches reads; 0: any cells
  // What else cannot be had.
  void (*check)(const VisionConfig&, const ImageProcessor&, Problems&) = nullptr;
  // Besides the keys that all have.
  void (*add_keys)(const VisionConfig&, const ImageProcessor&, VisionKeys&) = nullptr;
};

// By what `model` was imported from. Throws Error(data) for one whose images llama.cpp cannot show to the decoder.
const VisionFamily& vision_family_of(const ModelDirectory& model);

// Throws Error(data) for an encoder that llama.cpp's cannot be.
void check_vision(const VisionConfig& vision, const VisionFamily& family, const ImageProcessor& images,
                  const std::string& where);

// "v.blk.3.ln1" of "encoder.layers.3.layer_norm1", or the name of a whole tensor that is no weight or bias of a module.
std::optional<std::string> encoder_name(const std::string& module);
// Of a module of the connector, whose DeepStack reads these layers.
std::optional<std::string> connector_name(const std::string& module, const VisionFamily& family,
                                          const std::vector<int64_t>& deepstack);

} // namespace fvlm::gguf
