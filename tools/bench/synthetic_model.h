// Synthetic models with random weights, and batches for them, as files.
#pragma once
#include "model/weights/model_directory.h"

#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace fvlm::bench {

// Frames and text tokens of each sample; every token but the first is a label.
struct BatchShape {
  const char* name;
  std::vector<int64_t> frames, text;
};

// Lengths of the texts of a question, which are learnt as LatentWire learns them.
struct QuestionLengths {
  int64_t prompt, anchor, answer; // tokens; the prompt is the teacher's
};

struct Shape {
  const char* name;
  const char* summary;
  const char *vision, *decoder; // config.json, as published
  const char* connector;        // as in fvlm.json
  int64_t frame;                // pixels a side
  std::vector<BatchShape> batches;
  int64_t frames = 0;                   // of each sample; 0: as many as a measurement asks for
  std::vector<std::string> freeze = {}; // groups of parameters
  std::optional<QuestionLengths> question = {};

  int64_t vocabulary() const;
  ConnectorConfig connector_config() const;
  // Throws Error(usage) if the frames are the cells of an image, for measurements that show single frames or videos.
  void require_whole_frames() const;
};
const std::vector<Shape>& shapes();
const Shape& shape_named(std::string_view name); // throws Error(usage)

// Writes a model with weights that do not degenerate, so that the loss depends on every part, rounded to the type that
// they are stored in: f32 or bf16.
void make_model(const Shape& shape, const std::filesystem::path& folder, DType dtype = DType::f32);

void make_batch(const Shape& shape, const BatchShape& batch, const std::filesystem::path& file);

} // namespace fvlm::bench
