// The foveated vision-language model: a vision tower, a connector and a decoder, and the ways a pack goes through them.
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

// coarse_fine: every frame twice, with q_static, then with the query that the decoder asks. refined: the decoder asks
// once more, having read the fine visual tokens, as it does in use; no gradient flows into those. coarse_only: every
// frame with q_static. autoregressive: frame by frame through the decoder's memory, as in use; without gradients.
using plan::Mode;

// As a user names it; "shallow" is coarse_fine with a model whose queries read the tower's last layer alone. Throws
// Error(usage).
struct NamedMode {
  Mode mode;
  bool shallow;
};
NamedMode mode_named(std::string_view name);

class Vlm {
 public:
  // Throws Error(data) for towers that are not known.
  Vlm(const VlmConfig& config, const ArenaOptions& options);

  const VlmConfig& config() const { return config_; }
  Parameters& parameters() { return parameters_; }
  const Parameters& parameters() const { return parameters_; }
  VisionTower& tower() { return *tower_; }
  const VisionTower& tower() const { return *tower_; }
  Decoder& decoder() { return *decoder_; }
  const Decoder& decoder() const { return *decoder_; }
  // The work that is saved on the way. Without, the results are the same.
  plan::Speed speed;

  struct Seen {
    Value tokens;  // [frames, decoder width]
    Value coarse;  // the same of the coarse pass; undefined where there is none
    Value queries; // what each frame was read with
    // Where those looked, on request: [frames, layers, heads, tokens of a frame], one layer where the model is shallow.
    at::Tensor attention;
    ops::JointPass next; // of the decoder over `tokens`, where it shares weight gradients with the one over `coarse`
  };
  // The pack's frames as visual tokens. Nothing where it has no frame slots.
  enum class Show { tokens, attention_too };
  using Done = std::function<void(const char* part)>; // told as "vision", "coarse" and "fine" are done
  Seen see(
      Tape& tape, Operations& ops, const Pack& pack, Mode mode, Show show = Show::tokens,
      const Done& done = [](const char*) {}) const;

  // The decoder over visual tokens and text: hidden states [rows, width]. `pass`: Seen::next.
  Value read(Tape& tape, Operations& ops, const Value& visual, const Pack& pack, const ops::JointPass& pass = {}) const;

  // Frame by frame and token by token through the decoder's memory. What ends it is part of the result.
  struct Until {
    int64_t tokens;            // at most
    std::vector<int64_t> ends; // tokens after which nothing follows
  };
  // Told of each token as it is made; false: nothing follows.
  using TakeToken = std::function<bool(int64_t token)>;
  std::vector<int64_t> generate(Operations& ops, const at::Tensor& frames, const std::vector<int64_t>& prompt,
                                const Until& until, const Sampling& sampling = {}, const TakeToken& take = {}) const;

 private:
  // Each row of `queries` looks at its frame.
  Value look(Tape& tape, Operations& ops, const Value& queries, const VisualCache& cache,
             AttentionMaps* maps = nullptr) const;
  // The query of each frame, from the visual tokens of the frames before it.
  Value queries_from(Tape& tape, Operations& ops, const Value& tokens, const Pack& pack,
                     const ops::JointPass& pass) const;
  bool rides(const Tape& tape) const;
  VisionTower::Savings savings() const { return {speed.skip_last_patches, speed.fold_layer_scale}; }
  bool shares_products(const Tape& tape, const Operations& ops, const Pack& pack) const;
  void watch(Operations& ops, const VisualCache& cache, int64_t begin, int64_t end, DecoderMemory& memory, Seen& seen,
             Show show = Show::tokens) const;
  Seen room_for(const Operations& ops, int64_t frames) const;

  VlmConfig config_;
  Parameters parameters_;
  std::unique_ptr<VisionTower> tower_;
  std::unique_ptr<Decoder> decoder_;
  Foveation connector_;
};

} // namespace fvlm::model
