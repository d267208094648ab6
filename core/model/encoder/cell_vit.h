// CellVit: the vision transformers that read images of any size, some of them videos too: those of Qwen2-VL to Qwen3.5,
// Pixtral, SigLIP 2, MiniCPM-V, PaddleOCR-VL, VideoLLaMA 3, GLM-OCR, GLM-4.1V, HunyuanOCR, LFM3-VL and Gemma 4, which
// differ in a few traits and in what their weights are called. A frame is a cell of an image, the square of patches
// that becomes one row of the decoder, or the same square of a few frames of a video, whose steps are as images here.
// Queries and keys are rotated by the patch's line, and by its column: the first half of a head's frequencies is for
// lines, the second for columns. Qwen2.5-VL's layers attend to windows of an image, but for some that attend to the
// whole image; its rows are in the windows' order meanwhile. Those of MiniCPM-V merge squares of 2 x 2 patches behind
// one layer, and have a cell's patches square by square from the beginning. From Qwen3-VL on patches have learned
// positions besides, those of a square grid interpolated to the image's, and so have PaddleOCR-VL's; SigLIP 2's and
// HunyuanOCR's have such positions alone. Gemma 4's have two besides, one of the line and one of the column, and the
// first half of each of its heads is rotated by the column, the second by the line. In place of attention some of
// LFM3-VL's layers have a convolution over the patches around each one.
#pragma once
#include "model/encoder/encoder.h"
#include "model/encoder/vit_layer.h"
#include "model/pack.h"
#include "ops/short_convolution.h"

#include <array>
#include <optional>
#include <vector>

namespace fvlm::model {

class CellVit : public Encoder {
 public:
  // Names behind "vision."; null: there is none.
  struct Traits {
    const char* patch;      // its embedding, with a bias where there are learned positions or patch_bias says so
    const char* position;   // learned positions
    const char* input_norm; // of embedded patches, before positions are added
    const char* layers;     // the names of all layers begin with it: "blocks."
    const char* before_attention;
    std::vector<const char*> qkv; // that one product reads together, as for `up`
    const char *out, *before_mlp;
    std::vector<const char*> up; // gate and up where the MLP is gated: by SiLU, or of normed_branches by GELU
    const char* down;
    bool biases = true; // of the layers' linears
    // Whether a head's frequencies are for lines and columns in turns; otherwise both have the same ones.
    bool frequencies_alternate = false;
    const char* output_norm = nullptr; // of the last layer's rows
    bool rotates = true;
    bool channels_last = false; // of the numbers of a patch that its embedding reads
    bool patch_bias = false;
    const char *q_norm = nullptr, *k_norm = nullptr; // of each head
    // Of layers that normalize what each branch adds, as Gemma 4's do: the norms; null: there are none. The heads of
    // values are normalized, too, scores are not scaled then, and the halves of a head are rotated each by an axis.
    struct NormedBranches {
      const char *after_attention, *after_mlp;
    };
    const NormedBranches* normed_branches = nullptr;
    // Of layers that have a gated convolution in place of attention: VisionConfig::conv_layers.
    struct Convolution {
      const char *in, *taps, *out;
    };
    const Convolution* convolution = nullptr;
    const char* merger = nullptr; // what merges squares of patches, see VisionConfig::insert_layer_id
  };
  CellVit(const VisionConfig& config, const Traits& traits, Parameters& parameters);

  int64_t width() const override { return config_.hidden_size; }
  int64_t tokens_per_frame(int64_t height, int64_t image_width) const override {
    return fvlm::tokens_per_frame(config_, height, image_width);
  }
  bool reads_cells() const override { return config_.reads_cells(); }
  int64_t step_frames() const override { return config_.temporal_patch_size; }
  bool trains() const override { return patch_weight_.requires_grad(); }
  void add_maps(PackMaps& maps, const CellLayout& layout) const override;
  Value forward(Tape& tape, Operations& ops, const at::Tensor& frames, const Segments& images,
                const PackMaps& maps) const override;
  std::vector<Value> forward_with_layers(Tape& tape, Operations& ops, const at::Tensor& frames, const Segments& images,
                                         const PackMaps& maps) const override;
  double flops(int64_t, bool trains) const override { return image_flops({1, 1}, trains); }
  double image_flops(const ImageGrid& image, bool trains) const override;

 private:
  struct Linear {
    Operations::Layer layer;
    std::array<at::Tensor, 4> bounds = {}; // of its input and of its output, see VisionConfig; or undefined ones
    Value operator()(Tape& tape, Operations& ops, const Value& x, const Value& residual = {}) const;
  };
  struct Layer {
    VitNorm before_attention, before_mlp;
    std::vector<Linear> qkv; // one for all, or clipped ones; or what the convolution reads
    Linear out;
    std::vector<Linear> up; // as qkv
    Linear down;
    bool attends_to_windows;
    ops::Weight q_norm = {}, k_norm = {};         // undefined: there are none
    VitNorm after_attention = {}, after_mlp = {}; // see Traits::NormedBranches
    ops::ConvolutionTaps taps = {};               // defined where it has a convolution
    bool convolves() const { return taps.weight.defined(); }
  };
  // Where the patches of a pack are in their images.
  struct Places {
    at::Tensor positions;
    ops::PatchSquares squares; // where layers have convolutions
  };
  Places places_of(const PackMaps& maps) const;
  // The attention of a square's patches to each other, without an MLP, and what makes one row of a square.
  struct Merger {
    Layer layer;
    VitNorm norm;
    Operations::Layer first, second;
  };
  void add_merger(const std::string& stem, const Traits& traits, Parameters& parameters);
  bool has_windows() const { return config_.window_size > 0; }
  bool has_learned_positions() const { return config_.num_position_embeddings > 0; }
  int64_t window_side() const { return std::max<int64_t>(1, config_.window_size / config_.image_size); } // in cells
  // [slots, frames of a step] where the pack has videos. An image shows the same square in all of them.
  at::Tensor squares_of(const CellLayout& layout) const;
  // [slots, 3, H, W], or with all frames of their steps [slots, frames, 3, H, W], in the order of windows.
  at::Tensor cells_of(const at::Tensor& frames, const PackMaps& maps) const;
  // int64 [offsets, rows]: the patches around each one that its convolutions read, see ops::PatchSquares.
  at::Tensor patches_around(const CellLayout& layout) const;
  // The line and the column of a cell's patch in the cell.
  std::array<int64_t, 2> place_in_cell(int64_t patch) const;
  Value embedded(Tape& tape, Operations& ops, const at::Tensor& frames, const PackMaps& maps) const;
  Value attend(Tape& tape, Operations& ops, const Layer& layer, const Value& normed, const Segments& segments,
               const Places& places) const;
  Value pass(Tape& tape, Operations& ops, const Layer& layer, const Value& x, const Segments& segments,
             const Places& places) const;
  Segments unmerged_images(const Segments& images) const;
  // Rows of squares, of those of their patches.
  Value merged(Tape& tape, Operations& ops, const Value& x, const Segments& squares) const;
  // The rest of a layer whose branches are normalized; `read`: what its attention made of x.
  Value finish_normed(Tape& tape, Operations& ops, const Layer& layer, const Value& x, const Value& read) const;

  VisionConfig config_;
  bool is_gated_, rotates_, channels_last_, norms_branches_;
  ops::Weight patch_weight_, patch_bias_, position_;
  VitNorm input_norm_, output_norm_; // an undefined weight: there is none
  ops::Rotary rotary_;
  std::vector<Layer> layers_;
  std::optional<Merger> merger_;
};

} // namespace fvlm::model
