// The foveated connector of fVLM: one visual token a frame. A query attends to the frame's tokens in every layer of the
// encoder; the decoder makes the query of a frame from the visual tokens of the frames before it.
//
// coarse_fine: every frame is attended to twice, with q_static, then with the query that the decoder makes of the
// coarse tokens. refined: the queries are made once more, of the fine tokens, as in inference; no gradient flows
// through the first ones. coarse_only: every frame with q_static. autoregressive: frame by frame with the decoder's KV
// cache, as in inference; without gradients.
#include "model/connector/connector.h"

#include "base/error.h"
#include "model/connector/foveated/maps.h"
#include "model/connector/foveated/projections.h"
#include "model/connector/foveated/settings.h"
#include "model/encoder/attention_maps.h"
#include "model/encoder/layerwise.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>

#include <array>

namespace fvlm::model {
namespace {

const LayerwiseEncoder& layerwise_of(const Encoder& encoder) {
  if (const LayerwiseEncoder* layerwise = encoder.layerwise()) return *layerwise;
  throw Error(ErrorKind::data, "the foveated connector attends to the encoder's layers one by one, and this vision "
                               "encoder does not offer their keys and values")
      .advise("use a DINOv2 vision tower, or another connector");
}

class FoveatedConnector : public Connector {
 public:
  FoveatedConnector(const connector::Foveated& settings, const Parts& parts, Parameters& parameters)
      : Connector(parts), encoder_(layerwise_of(parts.encoder)), settings_(settings),
        projections_(settings.visual_scale, parameters) {}

  void add_maps(PackMaps& maps, const FrameLayout& layout) const override { add_foveated_maps(maps, layout); }
  bool has_attention() const override { return true; }
  VisualTokens encode(Tape& tape, Operations& ops, const Pack& pack, const EncodeRequest& request) const override;
  VisualTokens encode_no_frames(Operations& ops, int64_t tokens_per_frame) const override;
  void prefill(Operations& ops, const at::Tensor& frames, KvCache& cache) const override;
  double flops(const FlopsRequest& request) const override;

 private:
  VisualTokens encode_autoregressively(Tape& tape, Operations& ops, const Pack& pack,
                                       const EncodeRequest& request) const;
  // Visual tokens of the frames: each row of `queries` attends to its frame.
  Value attend_frames(Tape& tape, Operations& ops, const Value& queries, const VisualCache& cache,
                      AttentionMaps* maps = nullptr) const;
  // The query of each frame, which the decoder makes of the visual tokens of earlier frames.
  Value next_queries(Tape& tape, Operations& ops, const Value& tokens, const FoveatedMaps& maps,
                     const ops::SharedGradientPass& pass) const;
  bool appends_coarse_queries(const Tape& tape) const;
  bool shares_products(const Tape& tape, const Operations& ops, const Pack& pack) const;
  LayerwiseEncoder::EncodeOptions encode_options() const {
    return {parts_.speed.skip_last_patches, parts_.speed.fold_layer_scale};
  }
  void decode_frames_autoregressive(Operations& ops, const VisualCache& cache, int64_t begin, int64_t end,
                                    KvCache& kv_cache, VisualTokens& seen, EncodeOutputs outputs) const;
  VisualTokens allocate_visual_tokens(const Operations& ops, int64_t frames) const;

  const LayerwiseEncoder& encoder_;
  connector::Foveated settings_;
  Projections projections_;
};

Value FoveatedConnector::attend_frames(Tape& tape, Operations& ops, const Value& queries, const VisualCache& cache,
                                       AttentionMaps* maps) const {
  const Value projected = projections_.project_query(tape, ops, queries);
  return projections_.to_visual_tokens(tape, ops,
                                       encoder_.attend(tape, ops, projected, cache, settings_.shallow(), maps));
}

// With a frozen encoder, appended queries would force a backward pass through all of its tokens.
bool FoveatedConnector::appends_coarse_queries(const Tape& tape) const {
  return parts_.speed.coarse_in_tower && !settings_.shallow() && (!tape.records() || parts_.encoder.trains());
}

bool FoveatedConnector::shares_products(const Tape& tape, const Operations& ops, const Pack& pack) const {
  const auto element = static_cast<int64_t>(c10::elementSize(ops.options().dtype));
  return parts_.speed.joint_weight_gradients && tape.keeps_steps() && !parts_.decoder.recompute.light &&
         parts_.decoder.can_defer_gradients(pack.sequence.tokens.size(0), element);
}

VisualTokens FoveatedConnector::encode(Tape& tape, Operations& ops, const Pack& pack,
                                       const EncodeRequest& request) const {
  if (request.mode == "autoregressive") return encode_autoregressively(tape, ops, pack, request);
  const FoveatedMaps own(pack.maps);
  AttentionMaps shown;
  AttentionMaps* const maps = request.outputs == EncodeOutputs::tokens_and_attention ? &shown : nullptr;
  const auto seen = [&](const Value& tokens, const Value& coarse, const Value& queries) -> VisualTokens {
    return {tokens, {{"coarse", coarse}}, queries, maps ? shown.stacked() : at::Tensor(), {}};
  };
  const Value fixed = projections_.static_query(tape, pack.frames.size(0));
  const bool coarse_only = request.mode == "coarse_only";
  VisualCache cache;
  Value coarse;
  if (appends_coarse_queries(tape) && !(coarse_only && maps)) {
    auto both = encoder_.encode_and_attend(tape, ops, pack.frames, projections_.project_query(tape, ops, fixed),
                                           own.appended, encode_options());
    request.end_phase("vision", "coarse");
    cache = std::move(both.cache);
    coarse = projections_.to_visual_tokens(tape, ops, both.attended);
  } else {
    cache = encoder_.encode(tape, ops, pack.frames, pack.patches, own.queries, encode_options());
    request.end_phase("vision", "coarse");
    coarse = attend_frames(tape, ops, fixed, cache, coarse_only ? maps : nullptr);
  }
  if (coarse_only) return seen(coarse, coarse, fixed);
  std::array<ops::SharedGradientPass, 2> passes;
  if (shares_products(tape, ops, pack)) passes = ops::SharedGradientPass::make_pair(pack.sequence.tokens.size(0));
  Value previous_tokens = coarse;
  if (request.mode == "refined") { // without a gradient
    Tape no_grad(Tape::Mode::forward_only);
    const Value first = next_queries(no_grad, ops, Value(coarse.data), own, {});
    previous_tokens = Value(attend_frames(no_grad, ops, first, cache).data);
  }
  const Value queries = next_queries(tape, ops, previous_tokens, own, passes[0]);
  request.end_phase("coarse", "fine");
  const Value fine = attend_frames(tape, ops, queries, cache, maps);
  request.end_phase("fine", nullptr);
  VisualTokens both = seen(fine, coarse, queries);
  both.next = passes[1];
  return both;
}

VisualTokens FoveatedConnector::encode_autoregressively(Tape& tape, Operations& ops, const Pack& pack,
                                                        const EncodeRequest& request) const {
  const FoveatedMaps own(pack.maps);
  const VisualCache cache = encoder_.encode(tape, ops, pack.frames, pack.patches, own.queries, encode_options());
  request.end_phase("vision", nullptr);
  VisualTokens seen = allocate_visual_tokens(ops, pack.frames.size(0));
  const at::Tensor starts = own.videos.cu_seqlens.cpu();
  for (int64_t video = 0; video + 1 < starts.size(0); ++video) {
    const int64_t begin = starts[video].item<int64_t>(), end = starts[video + 1].item<int64_t>();
    KvCache kv_cache = parts_.decoder.make_kv_cache(ops, end - begin);
    decode_frames_autoregressive(ops, cache, begin, end, kv_cache, seen, request.outputs);
  }
  return seen;
}

Value FoveatedConnector::next_queries(Tape& tape, Operations& ops, const Value& tokens, const FoveatedMaps& maps,
                                      const ops::SharedGradientPass& pass) const {
  const Value own_queries =
      projections_.query_from_hidden(tape, ops, parts_.decoder.forward(tape, ops, tokens, maps.videos, pass, true));
  return projections_.shift_right(tape, own_queries, maps.query_source);
}

// One video's frames in order, each with the query that the decoder made of the previous ones.
void FoveatedConnector::decode_frames_autoregressive(Operations& ops, const VisualCache& cache, int64_t begin,
                                                     int64_t end, KvCache& kv_cache, VisualTokens& seen,
                                                     EncodeOutputs outputs) const {
  Tape no_grad(Tape::Mode::forward_only);
  const int64_t rows = cache.tokens.max_length;
  const at::Device device = seen.tokens.data.device();
  const auto segment = [&](int64_t length) {
    return Segments{at::tensor({int64_t{0}, length}, at::kInt).to(device), {}, length};
  };
  const Segments one_query = segment(1), one_frame = segment(rows);
  Value query = projections_.first_query(no_grad);
  for (int64_t frame = begin; frame < end; ++frame) {
    const auto of_frame = [&](const Heads& heads) {
      return Heads{Value(heads.value.data.narrow(0, frame * rows, rows)), heads.column, heads.count};
    };
    VisualCache frame_cache{{}, one_frame, one_query, cache.folded};
    for (const auto& layer : cache.layers) frame_cache.layers.push_back({of_frame(layer.keys), of_frame(layer.values)});
    AttentionMaps maps;
    const bool maps_too = outputs == EncodeOutputs::tokens_and_attention;
    const Value token = attend_frames(no_grad, ops, query, frame_cache, maps_too ? &maps : nullptr);
    if (maps_too) {
      const at::Tensor map = maps.stacked();
      if (!seen.attention.defined()) {
        auto shape = map.sizes().vec();
        shape[0] = seen.tokens.data.size(0);
        seen.attention = at::zeros(shape, map.options());
      }
      seen.attention.narrow(0, frame, 1).copy_(map);
    }
    seen.queries.data.narrow(0, frame, 1).copy_(query.data);
    seen.tokens.data.narrow(0, frame, 1).copy_(token.data);
    query = projections_.query_from_hidden(no_grad, ops, Value(parts_.decoder.forward(ops, token.data, kv_cache)));
  }
}

VisualTokens FoveatedConnector::allocate_visual_tokens(const Operations& ops, int64_t frames) const {
  return {Value(at::zeros({frames, parts_.decoder.width()}, ops.tensor_options())),
          {},
          Value(at::zeros({frames, settings_.query_dim}, ops.tensor_options())),
          {},
          {}};
}

VisualTokens FoveatedConnector::encode_no_frames(Operations& ops, int64_t tokens_per_frame) const {
  VisualTokens none = allocate_visual_tokens(ops, 0);
  const int64_t layers = settings_.shallow() ? 1 : encoder_.layers();
  none.attention = at::zeros({0, layers, encoder_.heads(), tokens_per_frame}, ops.tensor_options());
  return none;
}

void FoveatedConnector::prefill(Operations& ops, const at::Tensor& frames, KvCache& cache) const {
  Tape no_grad(Tape::Mode::forward_only);
  const int64_t count = frames.size(0), rows = parts_.encoder.tokens_per_frame(frames.size(2), frames.size(3));
  const at::Tensor each = at::arange(count + 1, at::TensorOptions(frames.device()).dtype(at::kInt));
  const Segments tokens{each * rows, {}, rows}, queries{each, {}, 1};
  VisualTokens seen = allocate_visual_tokens(ops, count);
  decode_frames_autoregressive(ops, encoder_.encode(no_grad, ops, frames, tokens, queries, encode_options()), 0, count,
                               cache, seen, EncodeOutputs::tokens);
}

double FoveatedConnector::flops(const FlopsRequest& request) const {
  const auto& [tokens, work, trained, mode] = request;
  const int64_t query = settings_.query_dim, width = parts_.encoder.width(), decoder = parts_.decoder.width();
  const ForwardFlops projections{
      product_flops(query, width) + product_flops(width, width) + product_flops(width, decoder), 0};
  const auto attend_all = [&](const TrainedParts& of, bool inputs) {
    return work.frames * encoder_.attend_flops(tokens, settings_.shallow(), of.vision, inputs) +
           with_backward(projections * work.frames, of.connector, inputs);
  };
  const auto make_queries = [&](const TrainedParts& of, bool inputs) {
    return parts_.decoder.flops(work.frames, work.frame_pairs, of.decoder, inputs) +
           with_backward(ForwardFlops{product_flops(decoder, query), 0} * work.frames, of.connector, inputs);
  };
  const bool any = trained.any(); // a gradient goes all the way back to the queries
  const double fine = work.frames * encoder_.encode_flops(tokens, trained.vision) + make_queries(trained, any) +
                      attend_all(trained, any);
  if (mode == "refined") // the static query's tokens, the first queries and what they read: without a gradient
    return fine + 2 * attend_all({}, false) + make_queries({}, false);
  return fine + attend_all(trained, any);
}

} // namespace

std::unique_ptr<Connector> foveated_connector(const plan::ConnectorSettings& settings, const Parts& parts,
                                              Parameters& parameters) {
  return std::make_unique<FoveatedConnector>(static_cast<const connector::Foveated&>(settings), parts, parameters);
}

} // namespace fvlm::model
