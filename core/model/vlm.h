// The foveated vision-language model: a vision tower, a connector and a decoder, and the forward passes over a pack.
#pragma once
#include "model/connector/foveation.h"
#include "model/pack.h"
#include "model/parts.h"
#include "model/sampling.h"
#include "recipe/plan.h"

#include <functional>
#include <memory>
#include <string_view>
#include <vector>

namespace fvlm::model {

struct VlmConfig {
  VisionConfig vision;
  DecoderConfig decoder;
  ConnectorConfig connector;
};

// coarse_fine: every frame is attended to twice, with q_static, then with the query that the decoder makes of the
// coarse tokens. refined: the queries are made once more, of the fine tokens, as in inference; no gradient flows
// through the first ones. coarse_only: every frame with q_static. autoregressive: frame by frame with the decoder's KV
// cache, as in inference; without gradients.
using plan::Mode;

// A mode by its name on the command line; "shallow" is coarse_fine with a model whose queries attend only to the
// tower's last layer. Throws Error(usage).
struct NamedMode {
  Mode mode;
  bool shallow;
};
NamedMode parse_mode(std::string_view name);

class Vlm {
 public:
  // Throws Error(data) for an unknown model_type.
  Vlm(const VlmConfig& config, const ArenaOptions& options);

  const VlmConfig& config() const { return config_; }
  Parameters& parameters() { return parameters_; }
  const Parameters& parameters() const { return parameters_; }
  VisionTower& tower() { return *tower_; }
  const VisionTower& tower() const { return *tower_; }
  Decoder& decoder() { return *decoder_; }
  const Decoder& decoder() const { return *decoder_; }
  // Optimizations of the plan; they do not change the result.
  plan::Speed speed;

  struct VisualTokens {
    Value tokens;  // [frames, decoder width]
    Value coarse;  // of the coarse pass; undefined if there was none
    Value queries; // the query of each frame
    // Attention maps on request: [frames, layers, heads, tokens of a frame]; one layer if the model is shallow.
    at::Tensor attention;
    ops::SharedGradientPass next; // for decode(): shares weight gradients with the coarse pass
  };
  // Encodes the pack's frames to visual tokens. Returns undefined values if the pack has no frame slots.
  enum class Outputs { tokens, tokens_and_attention };
  using PhaseCallback = std::function<void(const char* part)>; // "vision", "coarse", "fine"
  VisualTokens encode(
      Tape& tape, Operations& ops, const Pack& pack, Mode mode, Outputs outputs = Outputs::tokens,
      const PhaseCallback& on_phase_end = [](const char*) {}) const;

  // The decoder over visual tokens and text: hidden states [rows, width]. `pass`: VisualTokens::next.
  Value decode(Tape& tape, Operations& ops, const Value& visual, const Pack& pack,
               const ops::SharedGradientPass& pass = {}) const;

  // Encodes frames autoregressively, then generates token by token. An end token is part of the result.
  struct StopCondition {
    int64_t max_tokens;
    std::vector<int64_t> end_tokens; // generation stops after any of these, as at EOS
  };
  // Called with each generated token; returns false to stop.
  using TokenCallback = std::function<bool(int64_t token)>;
  std::vector<int64_t> generate(Operations& ops, const at::Tensor& frames, const std::vector<int64_t>& prompt,
                                const StopCondition& stop, const Sampling& sampling = {},
                                const TokenCallback& on_token = {}) const;

 private:
  // Visual tokens of the frames: each row of `queries` attends to its frame.
  Value attend_frames(Tape& tape, Operations& ops, const Value& queries, const VisualCache& cache,
                      AttentionMaps* maps = nullptr) const;
  // The query of each frame, which the decoder makes of the visual tokens of earlier frames.
  Value next_queries(Tape& tape, Operations& ops, const Value& tokens, const Pack& pack,
                     const ops::SharedGradientPass& pass) const;
  bool appends_coarse_queries(const Tape& tape) const;
  VisionTower::EncodeOptions encode_options() const { return {speed.skip_last_patches, speed.fold_layer_scale}; }
  bool shares_products(const Tape& tape, const Operations& ops, const Pack& pack) const;
  void decode_frames_autoregressive(Operations& ops, const VisualCache& cache, int64_t begin, int64_t end,
                                    KvCache& kv_cache, VisualTokens& seen, Outputs outputs = Outputs::tokens) const;
  VisualTokens allocate_visual_tokens(const Operations& ops, int64_t frames) const;

  VlmConfig config_;
  Parameters parameters_;
  std::unique_ptr<VisionTower> tower_;
  std::unique_ptr<Decoder> decoder_;
  Foveation connector_;
};

} // namespace fvlm::model
