// Model: an encoder, a connector and one or more decoders, each made by its name, and the forward passes over a pack.
#pragma once
#include "model/adapter.h"
#include "model/connector/connector.h"
#include "model/pack.h"
#include "model/weights/connector.h"
#include "recipe/plan.h"

#include <memory>
#include <string_view>
#include <vector>

namespace fvlm::model {

struct ModelConfig {
  VisionConfig vision;
  DecoderConfig decoder;
  ConnectorConfig connector = plan::default_connector();
  std::vector<DecoderConfig> further = {}; // decoders that read the same frames
  Adapters adapters = {};

  std::vector<DecoderConfig> decoders() const;
  RowPositionRules row_positions() const; // of the decoder
};

class Model {
 public:
  // Throws Error(data) for parts that are not built in or do not go together.
  Model(const ModelConfig& config, const ArenaOptions& options);

  const ModelConfig& config() const { return config_; }
  Parameters& parameters() { return *parameters_; }
  const Parameters& parameters() const { return *parameters_; }
  Encoder& encoder() { return *encoder_; }
  const Encoder& encoder() const { return *encoder_; }
  Decoder& decoder() { return *decoder_; }
  const Decoder& decoder() const { return *decoder_; }
  const Connector& connector() const { return *connector_; }
  // How many decoders there are, and the model as one of them has it: the same encoder, connector and parameters, with
  // that decoder and its rows in place of the first's.
  size_t decoders() const { return 1 + further_.size(); }
  const Model& with_decoder(size_t index) const { return index == 0 ? *this : *further_[index - 1]; }
  void set_recompute(const Recompute& encoder, const Recompute& decoders);
  // What the dropout of adapters derives from, until the next call. To be called before a pass that trains.
  void set_dropout_seed(int64_t seed) { dropout_seed_.fill_(seed); }
  // The adapters are those of several; see MixedAdapter for `owners`.
  void mix_adapters(const std::map<std::string, std::vector<int32_t>>& owners);
  // Which of them each row of the next pass is of (ops::RowAdapters). Does nothing for a model without mixed ones.
  void select_adapters(const at::Tensor& of_rows) const;
  // Optimizations of the plan; they do not change the result.
  plan::Speed speed;

  // For make_pack(), of frames of this size.
  FrameReader frame_reader(int64_t height, int64_t width) const;
  FrameReader frame_reader(const at::Tensor& frames) const; // of a sample's frames, which are defined

  // Encodes the pack's frames to visual tokens, in one of the connector's modes. Returns undefined values if the pack
  // has no frame slots.
  VisualTokens encode(Tape& tape, Operations& ops, const Pack& pack, std::string_view mode,
                      EncodeOutputs outputs = EncodeOutputs::tokens, const PhaseCallback& on_phase = {}) const;

  // encode() in two, where there are several decoders: what each of them reads of the frames, in one pass; and of that
  // the rows of this one. Nothing if the pack has no frame slots.
  std::vector<Value> encode_for_all(Tape& tape, Operations& ops, const Pack& pack, std::string_view mode,
                                    const PhaseCallback& on_phase = {}) const;
  Value adapt(Tape& tape, Operations& ops, const Value& latents, const Pack& pack) const;

  // The decoder over visual tokens and text: hidden states [rows, width]. `pass`: VisualTokens::next.
  Value decode(Tape& tape, Operations& ops, const Value& visual, const Pack& pack,
               const ops::SharedGradientPass& pass = {}) const;

  // Floating-point operations of a step in this mode; `tokens`: of a frame in the encoder. Of a further decoder, what
  // it adds.
  double flops(int64_t tokens, const Work& work, const TrainedParts& trained, std::string_view mode) const;

  // Decoder rows of a sample whose only text is a prompt: its tokens, and the visual rows of the frames in place of its
  // placeholders or before it. Throws Error(data) where the placeholders are not those of the frames.
  int64_t prompt_rows(const Sample& sample) const;

 private:
  Model(const Model& first, size_t index, std::shared_ptr<Decoder> decoder);
  void require_deepstack() const; // that encoder, connector and decoders agree on its layers

  ModelConfig config_;
  at::Tensor dropout_seed_;                        // int64, a scalar
  std::shared_ptr<ops::RowAdapters> row_adapters_; // null: adapters are those of all rows
  std::shared_ptr<Parameters> parameters_;
  std::shared_ptr<Encoder> encoder_;
  std::shared_ptr<Decoder> decoder_;
  std::shared_ptr<Connector> connector_;
  size_t index_ = 0;                            // of the decoder
  std::vector<std::unique_ptr<Model>> further_; // of the first, the model as the others have it
};

} // namespace fvlm::model
