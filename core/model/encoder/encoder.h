// Encoder: frames in, hidden states out. A frame is an image or a cell of one, or for an encoder of bytes a text. An
// encoder knows its own parameters and nothing of the other parts. A family of encoders is a folder beside this file
// and a line in encoders.inc.
#pragma once
#include "model/part.h"
#include "model/weights/model_family.h"
#include "recipe/image_grid.h"

#include <memory>
#include <vector>

namespace fvlm::model {

class LayerwiseEncoder; // encoder/layerwise.h
struct PackMaps;        // pack.h

// The images and videos of a pack whose frames are their cells, one after the other.
struct CellLayout {
  std::vector<ImageGrid> images;
  int64_t slots = 0; // of cells, used or not
  // Of squares, where some are videos': see ImageGrid. 0: each slot has its own.
  int64_t squares = 0;
  at::Device device = at::kCPU;
};

class Encoder {
 public:
  virtual ~Encoder() = default;
  virtual int64_t width() const = 0;
  // Of an image of this size; of a text, the most that there can be: one for each byte.
  virtual int64_t tokens_per_frame(int64_t height, int64_t image_width) const = 0;
  // Whether frames are texts of bytes, of different lengths.
  virtual bool reads_bytes() const { return false; }
  // Whether frames are cells of images of any size. Samples then say how their cells lie (ImageGrid), a pack has a
  // segment for each image, and each step of a video, in place of each frame, and what add_maps() adds.
  virtual bool reads_cells() const { return false; }
  // How many frames of a video each of its cells shows.
  virtual int64_t step_frames() const { return 1; }
  // Adds named tensors and segments of the encoder's own to a pack of cells.
  virtual void add_maps(PackMaps&, const CellLayout&) const {}
  // Hidden states of every token, [tokens, width]: transformers' last_hidden_state, or those that the config names.
  // frames [n, 3, H, W], normalised, or the bytes of all texts, int64 [rows]. `tokens`: one segment for each frame, of
  // tokens_per_frame rows, or of as many as the text has bytes; for cells one for each image and step of a video. Rows
  // behind the last segment are padding. `maps`: the pack's.
  virtual Value forward(Tape& tape, Operations& ops, const at::Tensor& frames, const Segments& tokens,
                        const PackMaps& maps) const = 0;
  // The same, and behind it the hidden states of the layers that the config names for DeepStack.
  virtual std::vector<Value> forward_with_layers(Tape& tape, Operations& ops, const at::Tensor& frames,
                                                 const Segments& tokens, const PackMaps& maps) const {
    return {forward(tape, ops, frames, tokens, maps)};
  }
  // Floating-point operations of forward() for one frame, with its backward pass if the encoder trains.
  virtual double flops(int64_t tokens, bool trains) const = 0;
  // The same for an image or video whose cells are frames, where reads_cells(): those of a step attend to each other.
  virtual double image_flops(const ImageGrid&, bool) const { return 0; }
  // Whether the encoder's parameters are trained.
  virtual bool trains() const = 0;
  // Keys and values by layer, for connectors that attend to them; null if the encoder does not offer them.
  virtual const LayerwiseEncoder* layerwise() const { return nullptr; }

  Recompute recompute;
};

// Throws Error(data) for an unknown model_type.
std::unique_ptr<Encoder> make_encoder(const VisionConfig& config, Parameters& parameters);

// For a program that adds encoders of its own, before it reads the first recipe or model directory.
using MakeEncoder = std::unique_ptr<Encoder> (*)(const VisionConfig& config, Parameters& parameters);
void register_encoder(EncoderFamily family, MakeEncoder make);

} // namespace fvlm::model
