// Floating-point operations of a training step: matrix products and attention, which are nearly all of them.
// Recomputed activations count once. Every part of a model counts its own (flops()); these are the terms.
#pragma once
#include "recipe/image_grid.h"

#include <cstdint>
#include <span>
#include <vector>

namespace fvlm::model {

// Amount of data that passes through a model, without padding.
struct Work {
  double frames = 0;
  double encoded_frames = 0;     // those that the encoder reads: fewer where it reads a repeated frame once
  double rows = 0;               // of the decoder's main pass: visual tokens and text
  double labels = 0;             // predicted by the output head
  double pairs = 0;              // attention pairs: a row and one it attends to, itself included
  double frame_pairs = 0;        // attention pairs among the frames of each sample, one row a frame
  std::vector<ImageGrid> images; // whose cells the frames are, for an encoder that reads cells

  // Adds one sample: its frames, the decoder rows that they become in each text, and the tokens of its texts.
  void add(int64_t frames, int64_t visual_rows, std::span<const int64_t> texts);
  void add(std::span<const ImageGrid> more) { images.insert(images.end(), more.begin(), more.end()); }
};

// Which parts are trained. None: only a forward pass.
struct TrainedParts {
  bool vision = false, connector = false, decoder = false;
  bool adapters = false; // of any part
  bool any() const { return vision || connector || decoder || adapters; }
};

// Operations of a forward pass: matrix products with weights, and attention, which has no weights.
struct ForwardFlops {
  double products = 0, attention = 0;

  ForwardFlops operator*(double times) const { return {products * times, attention * times}; }
  ForwardFlops operator+(const ForwardFlops& more) const {
    return {products + more.products, attention + more.attention};
  }
};

// One row times a matrix.
double product_flops(int64_t in, int64_t out);
// One query and one key: query times key, weight times value.
double attention_pair_flops(int64_t width);
// With the backward pass. `weights`, `inputs`: whether those have gradients. Attention's gradient goes to queries, keys
// and values, or to the queries alone.
double with_backward(const ForwardFlops& forward, bool weights, bool inputs, bool keys = true);

} // namespace fvlm::model
