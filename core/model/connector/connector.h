// Connector: what turns the frames of a sample into rows of the decoder, as many for each frame as its settings say,
// which stand before each of the sample's texts or in place of its placeholders. A connector is a folder beside this
// file and a line in connectors.inc.
#pragma once
#include "model/decoder/decoder.h"
#include "model/encoder/encoder.h"
#include "model/flops.h"
#include "model/pack.h"
#include "recipe/plan.h"

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>

namespace fvlm::model {

// What a connector stands between. Outlives it.
struct Parts {
  const Encoder& encoder;
  const Decoder& decoder;
  const plan::Speed& speed;                 // optimizations that do not change the result
  std::vector<const Decoder*> further = {}; // decoders that read the same frames

  const Decoder& decoder_at(size_t index) const { return index == 0 ? decoder : *further[index - 1]; }
};

struct VisualTokens {
  Value tokens; // [frames * rows per frame, decoder width], and columns for DeepStack, see Connector
  // Other visual tokens of the same frames, by the names that objectives know them by.
  std::map<std::string, Value> views;
  Value queries; // the query of each frame; undefined: the connector has none
  // Attention maps on request: [frames, layers, heads, tokens of a frame]; undefined: the connector attends to nothing.
  at::Tensor attention;
  // With them, where each frame has several queries, the map of each: [frames, queries, tokens of a frame], the mean
  // over layers and heads.
  at::Tensor query_attention;
  ops::SharedGradientPass next; // for Model::decode(): shares weight gradients with a pass of the connector's own

  // The view of this name; empty: `tokens`. Undefined if there are no frames. Throws Error(recipe).
  const Value& view(const std::string& name) const;
};

enum class EncodeOutputs { tokens, tokens_and_attention };
// At the end of a phase, with the name of the next; null: there is none. "vision" is the first.
using PhaseCallback = std::function<void(const char* ended, const char* next)>;

struct EncodeRequest {
  std::string_view mode; // one of the connector's
  EncodeOutputs outputs = EncodeOutputs::tokens;
  const PhaseCallback& on_phase; // may be empty
  size_t decoder = 0;            // whose rows are wanted, where there are several

  void end_phase(const char* ended, const char* next) const {
    if (on_phase) on_phase(ended, next);
  }
};

class Connector {
 public:
  virtual ~Connector() = default;

  // Adds named tensors and segments of its own to a pack.
  virtual void add_maps(PackMaps&, const FrameLayout&) const {}
  // For how many of the decoder's first layers each visual token has a further row, which is added to its own behind
  // that layer: DeepStack. They are columns of VisualTokens::tokens behind the token's.
  virtual int64_t deepstack_layers() const { return 0; }
  // Which of the decoder's rows attend to each other in both directions.
  virtual BidirectionalRows bidirectional_rows() const { return BidirectionalRows::none; }
  // Whether visual tokens of a frame depend on what the decoder makes of those before it.
  virtual bool reads_decoder() const { return false; }
  // Whether encode() can show attention maps.
  virtual bool has_attention() const { return false; }
  // Visual tokens of a pack's frames, of which there are some.
  virtual VisualTokens encode(Tape& tape, Operations& ops, const Pack& pack, const EncodeRequest& request) const = 0;
  // encode() in two, of a connector that goes with several decoders: what each of them reads of the frames, made in one
  // pass, and the rows that a decoder has of that.
  virtual std::vector<Value> encode_for_all(Tape& tape, Operations& ops, const Pack& pack,
                                            const EncodeRequest& request) const;
  virtual Value adapt(Tape& tape, Operations& ops, const Value& latents, int64_t frames, size_t decoder) const;
  // The same for a pack without frames: tensors of no rows, for those who want to see their shapes.
  virtual VisualTokens encode_no_frames(Operations& ops, int64_t tokens_per_frame) const;

  // Initial values, by the parameter's name, of fresh weights that depend on the decoder's, which it has by now.
  virtual std::map<std::string, at::Tensor> initial_values() const { return {}; }

  // Floating-point operations of encode(): of the encoder, of the connector itself, and of passes of its own through
  // the decoder.
  struct FlopsRequest {
    int64_t tokens; // of a frame
    const Work& work;
    const TrainedParts& trained;
    std::string_view mode;
  };
  virtual double flops(const FlopsRequest& request) const = 0;
  // What a further decoder adds to that.
  virtual double further_flops(const FlopsRequest&, size_t) const { return 0; }

 protected:
  explicit Connector(const Parts& parts) : parts_(parts) {}
  const Parts parts_;
};

// Throws Error(data) for a connector that is not built in or does not go with these parts.
std::unique_ptr<Connector> make_connector(const plan::ConnectorSettings& settings, const Parts& parts,
                                          Parameters& parameters);

// For a program that adds connectors of its own to all_settings() (settings.h).
using MakeConnector = std::unique_ptr<Connector> (*)(const plan::ConnectorSettings&, const Parts&, Parameters&);
void register_connector(std::string_view name, MakeConnector make);

} // namespace fvlm::model
