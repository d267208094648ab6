// Model: an encoder, a connector and a decoder, each made by its name, and the forward passes over a pack.
#pragma once
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
};

class Model {
 public:
  // Throws Error(data) for parts that are not built in or do not go together.
  Model(const ModelConfig& config, const ArenaOptions& options);

  const ModelConfig& config() const { return config_; }
  Parameters& parameters() { return parameters_; }
  const Parameters& parameters() const { return parameters_; }
  Encoder& encoder() { return *encoder_; }
  const Encoder& encoder() const { return *encoder_; }
  Decoder& decoder() { return *decoder_; }
  const Decoder& decoder() const { return *decoder_; }
  const Connector& connector() const { return *connector_; }
  // Optimizations of the plan; they do not change the result.
  plan::Speed speed;

  // For make_pack(), of frames of this size.
  FrameReader frame_reader(int64_t height, int64_t width) const;
  FrameReader frame_reader(const at::Tensor& frames) const; // of a sample's frames, which are defined

  // Encodes the pack's frames to visual tokens, in one of the connector's modes. Returns undefined values if the pack
  // has no frame slots.
  VisualTokens encode(Tape& tape, Operations& ops, const Pack& pack, std::string_view mode,
                      EncodeOutputs outputs = EncodeOutputs::tokens, const PhaseCallback& on_phase = {}) const;

  // The decoder over visual tokens and text: hidden states [rows, width]. `pass`: VisualTokens::next.
  Value decode(Tape& tape, Operations& ops, const Value& visual, const Pack& pack,
               const ops::SharedGradientPass& pass = {}) const;

  // Floating-point operations of a step in this mode; `tokens`: of a frame in the encoder.
  double flops(int64_t tokens, const Work& work, const TrainedParts& trained, std::string_view mode) const;

  // Decoder rows of a prompt: its tokens, and the visual rows of the frames, if they are defined, in place of its
  // placeholders or before it. Throws Error(data) where the placeholders are not those of the frames.
  int64_t prompt_rows(const at::Tensor& frames, const std::vector<int64_t>& prompt) const;

 private:
  ModelConfig config_;
  Parameters parameters_;
  std::unique_ptr<Encoder> encoder_;
  std::unique_ptr<Decoder> decoder_;
  std::unique_ptr<Connector> connector_;
};

} // namespace fvlm::model
