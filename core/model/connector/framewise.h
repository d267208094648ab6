// A connector that reads every frame by itself: the encoder's hidden states of a frame become its rows of the decoder,
// whatever the other frames and the text are. What such connectors have in common, and the steps they are made of.
#pragma once
#include "model/connector/connector.h"
#include "model/encoder/attention_maps.h"

namespace fvlm::model {

// In a row of a square of patches: all features of a patch before those of the next, or all patches' values of a
// feature before those of the next.
enum class SquareOrder { by_patch, by_feature };

class FramewiseConnector : public Connector {
 public:
  VisualTokens encode(Tape& tape, Operations& ops, const Pack& pack, const EncodeRequest& request) const final;
  double flops(const FlopsRequest& request) const final;

 protected:
  using Connector::Connector;

  struct Input {
    Value hidden;    // [frames * tokens of a frame, encoder width]
    int64_t frames;  // a repeated one counts once
    Segments tokens; // a segment for each frame
    std::string_view mode;
    size_t decoder;             // whose rows are wanted
    std::vector<Value> further; // as `hidden`, of the encoder's other layers that are read
  };
  // What the encoder makes of the pack's frames.
  Input read(Tape& tape, Operations& ops, const Pack& pack, const EncodeRequest& request) const;
  // [frames * rows of a frame, decoder width]. `maps`, if not null, receives the attention maps of a connector that has
  // them.
  virtual Value connect(Tape& tape, Operations& ops, const Input& input, AttentionMaps* maps) const = 0;
  // Squares of factor x factor patches side by side in one row each. Throws Error(data) where a frame's tokens are no
  // square of patches that is divisible by the factor.
  static Value squares_of_patches(Tape& tape, const Input& input, int64_t factor,
                                  SquareOrder order = SquareOrder::by_patch);
  // Of one frame.
  virtual ForwardFlops connect_flops(int64_t tokens) const = 0;
};

// Squares of factor x factor patches of a frame of rows x columns, side by side in one row each: as space-to-depth
// does.
Value space_to_depth(Tape& tape, const Value& patches, int64_t rows, int64_t columns, int64_t factor,
                     SquareOrder order = SquareOrder::by_patch);

// shares [outputs, inputs] times the `inputs` rows of every frame.
Value mix_rows(Tape& tape, const Value& x, const at::Tensor& shares);

// For each of the `frames`, its rows of `first`, then those of `second`.
Value join_rows(Tape& tape, const Value& first, const Value& second, int64_t frames);

// The rows of a parameter [rows, width] or [1, rows, width], repeated for every frame.
Value repeat_rows(Tape& tape, const ops::Weight& rows, int64_t frames);

// Two linears with a GELU between them, and a LayerNorm behind them: the projector of GhostVis.
class Projector {
 public:
  // Weights called <stem>.0, <stem>.3 and <stem>.4.
  Projector(Parameters& parameters, const std::string& stem);
  Value operator()(Tape& tape, Operations& ops, const Value& x) const;

 private:
  Operations::Layer up_, down_, norm_;
};

} // namespace fvlm::model
