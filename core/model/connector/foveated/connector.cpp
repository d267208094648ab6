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
#include "model/size_class.h"
#include "ops/rows.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>

#include <array>
#include <numeric>

namespace fvlm::model {
namespace {

const LayerwiseEncoder& layerwise_of(const Encoder& encoder) {
  if (const LayerwiseEncoder* layerwise = encoder.layerwise()) return *layerwise;
  throw Error(ErrorKind::data, "the foveated connector attends to the encoder's layers one by one, and this vision "
                               "encoder does not offer their keys and values")
      .advise("use a DINOv2 vision tower, or another connector");
}

// The frames of each sample that has any: the first, and the one past the last.
struct Video {
  int64_t begin, end;
};
using Videos = std::vector<Video>;

Videos videos_of(const Segments& segments) {
  Videos videos;
  const at::Tensor starts = segments.cu_seqlens.cpu();
  for (int64_t i = 0; i + 1 < starts.size(0); ++i)
    if (const Video video{starts[i].item<int64_t>(), starts[i + 1].item<int64_t>()}; video.begin < video.end)
      videos.push_back(video);
  return videos;
}

// The keys and values of some frames, and one query for each; of repeated ones behind them, where they are copied, so
// that numbers of frames are few.
VisualCache frames_of(const VisualCache& cache, std::vector<int64_t> frames) {
  const int64_t rows = cache.tokens.max_length, first = frames.front();
  const bool adjacent = frames.back() - first + 1 == std::ssize(frames);
  if (!adjacent) frames.resize(static_cast<size_t>(row_class(std::ssize(frames))), first);
  const auto count = std::ssize(frames);
  const at::Device device = cache.tokens.cu_seqlens.device();
  const at::Tensor index = at::tensor(frames, at::kLong).to(device), each = at::arange(count + 1, at::kInt).to(device);
  VisualCache chosen{{}, {each * rows, {}, rows}, {each, {}, 1}, cache.folded};
  const auto of_frames = [&](const at::Tensor& all) {
    return adjacent ? all.narrow(0, first * rows, count * rows)
                    : all.unflatten(0, {-1, rows}).index_select(0, index).flatten(0, 1);
  };
  for (const auto& [keys, values] : cache.layers) {
    const Value of_keys(of_frames(keys.value.data)),
        of_values = values.value.data.is_same(keys.value.data) ? of_keys : Value(of_frames(values.value.data));
    chosen.layers.push_back({{of_keys, keys.column, keys.count}, {of_values, values.column, values.count}});
  }
  return chosen;
}

// A video keeps the same pages from its first frame to its last, so that nobody has to account for them.
constexpr int64_t autoregressive_page_rows = 16;

int64_t pages_of(int64_t rows) {
  return (rows + autoregressive_page_rows - 1) / autoregressive_page_rows;
}

// The pages of a video's rows up to `index`: behind the padding page, those of all videos.
std::vector<int32_t> pages_of_video(const KvPages& pages, int64_t video, int64_t videos, int64_t index) {
  const int64_t each = (pages.layers.front().size(0) - 1) / videos;
  std::vector<int32_t> own(static_cast<size_t>(pages_of(index + 1)));
  std::iota(own.begin(), own.end(), static_cast<int32_t>(1 + video * each));
  return own;
}

class FoveatedConnector : public Connector {
 public:
  FoveatedConnector(const connector::Foveated& settings, const Parts& parts, Parameters& parameters)
      : Connector(parts), encoder_(layerwise_of(parts.encoder)), settings_(settings),
        projections_(settings.visual_scale, parameters) {}

  void add_maps(PackMaps& maps, const FrameLayout& layout) const override { add_foveated_maps(maps, layout); }
  bool reads_decoder() const override { return true; }
  bool has_attention() const override { return true; }
  VisualTokens encode(Tape& tape, Operations& ops, const Pack& pack, const EncodeRequest& request) const override;
  VisualTokens encode_no_frames(Operations& ops, int64_t tokens_per_frame) const override;
  double flops(const FlopsRequest& request) const override;

 private:
  VisualTokens encode_autoregressively(Tape& tape, Operations& ops, const Pack& pack,
                                       const EncodeRequest& request) const;
  // Where no sample has a second frame. The host decides nothing, so that it can be captured.
  VisualTokens encode_first_frames(Tape& tape, Operations& ops, const Pack& pack, const EncodeRequest& request) const;
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
  void decode_frames_autoregressive(Operations& ops, const VisualCache& cache, const std::vector<int64_t>& sources,
                                    const Videos& videos, int64_t index, KvPages& kv_pages, VisualTokens& seen,
                                    EncodeOutputs outputs) const;
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
  // For each frame slot, where a repeated frame was encoded once.
  const auto for_each_slot = [&](const Value& rows) {
    return pack.frame_source.defined() ? ops::gather_repeated_rows(tape, rows, pack.frame_source) : rows;
  };
  const Value fixed = projections_.static_query(tape, pack.encoder_slots);
  const bool coarse_only = request.mode == "coarse_only";
  VisualCache cache;
  Value coarse;
  const bool appended = appends_coarse_queries(tape) && !(coarse_only && maps);
  if (appended) {
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
  coarse = for_each_slot(coarse);
  if (coarse_only) {
    VisualTokens tokens = seen(coarse, coarse, for_each_slot(fixed));
    if (maps && pack.frame_source.defined()) tokens.attention = tokens.attention.index_select(0, pack.frame_source);
    return tokens;
  }
  cache.queries = appended ? own.appended_fine_queries : own.fine_queries;
  cache.shared = {pack.frame_source, pack.encoder_slots};
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
  const bool has_next = own.videos.max_length > 1 || pack.frame_source.defined();
  if (!has_next && pack.frames_used == pack.frame_slots && request.outputs == EncodeOutputs::tokens)
    return encode_first_frames(tape, ops, pack, request);
  const VisualCache cache = encoder_.encode(tape, ops, pack.frames, pack.patches, own.queries, encode_options());
  request.end_phase("vision", nullptr);
  VisualTokens seen = allocate_visual_tokens(ops, pack.frame_slots);
  std::vector<int64_t> sources(static_cast<size_t>(pack.frame_slots)); // the encoded frame of each
  std::iota(sources.begin(), sources.end(), int64_t{0});
  if (pack.frame_source.defined()) {
    const at::Tensor on_host = pack.frame_source.cpu();
    sources.assign(on_host.const_data_ptr<int64_t>(), on_host.const_data_ptr<int64_t>() + on_host.numel());
  }
  const Videos videos = videos_of(own.videos);
  KvPages kv_pages = parts_.decoder.make_kv_pages(ops, 1 + std::ssize(videos) * pages_of(own.videos.max_length),
                                                  autoregressive_page_rows, 1 + std::ssize(videos));
  for (int64_t index = 0; index < own.videos.max_length; ++index)
    decode_frames_autoregressive(ops, cache, sources, videos, index, kv_pages, seen, request.outputs);
  return seen;
}

VisualTokens FoveatedConnector::encode_first_frames(Tape& tape, Operations& ops, const Pack& pack,
                                                    const EncodeRequest& request) const {
  const FoveatedMaps own(pack.maps);
  const Value queries = projections_.first_query(tape, pack.frame_slots);
  Value tokens;
  if (appends_coarse_queries(tape)) {
    const Value projected = projections_.project_query(tape, ops, queries);
    const auto both = encoder_.encode_and_attend(tape, ops, pack.frames, projected, own.appended, encode_options());
    tokens = projections_.to_visual_tokens(tape, ops, both.attended);
  } else {
    const VisualCache cache = encoder_.encode(tape, ops, pack.frames, pack.patches, own.queries, encode_options());
    tokens = attend_frames(tape, ops, queries, cache);
  }
  request.end_phase("vision", nullptr);
  return {tokens, {}, queries, {}, {}};
}

Value FoveatedConnector::next_queries(Tape& tape, Operations& ops, const Value& tokens, const FoveatedMaps& maps,
                                      const ops::SharedGradientPass& pass) const {
  const Value own_queries =
      projections_.query_from_hidden(tape, ops, parts_.decoder.forward(tape, ops, tokens, maps.videos, pass, true));
  return projections_.shift_right(tape, own_queries, maps.query_source);
}

// Frame `index` of every video that has so many. Its query is in `seen` already, unless it is a first one; that of the
// next frame, which the decoder makes, is added.
void FoveatedConnector::decode_frames_autoregressive(Operations& ops, const VisualCache& cache,
                                                     const std::vector<int64_t>& sources, const Videos& videos,
                                                     int64_t index, KvPages& kv_pages, VisualTokens& seen,
                                                     EncodeOutputs outputs) const {
  Tape no_grad(Tape::Mode::forward_only);
  std::vector<int64_t> frames, encoded, next, has_next;
  PassRows rows(kv_pages.page_rows, parts_.decoder.carries_state());
  for (size_t i = 0; i < videos.size(); ++i) {
    const int64_t frame = videos[i].begin + index;
    if (frame >= videos[i].end) continue;
    if (frame + 1 < videos[i].end) {
      has_next.push_back(std::ssize(frames));
      next.push_back(frame + 1);
    }
    frames.push_back(frame);
    encoded.push_back(sources[static_cast<size_t>(frame)]);
    rows.begin_sequence(pages_of_video(kv_pages, static_cast<int64_t>(i), std::ssize(videos), index),
                        static_cast<int32_t>(1 + i));
    rows.append(0, index);
  }
  if (frames.empty()) return;
  const auto on_device = [&](const std::vector<int64_t>& values) {
    return at::tensor(values, at::kLong).to(seen.tokens.data.device());
  };
  const int64_t count = std::ssize(frames);
  const at::Tensor places = on_device(frames);
  if (index == 0) seen.queries.data.index_copy_(0, places, projections_.first_query(no_grad).data.expand({count, -1}));
  const VisualCache chosen = frames_of(cache, encoded);
  const int64_t padded = chosen.queries.cu_seqlens.size(0) - 1;
  frames.resize(static_cast<size_t>(padded), frames.front());
  AttentionMaps maps;
  const bool maps_too = outputs == EncodeOutputs::tokens_and_attention;
  const Value queries(seen.queries.data.index_select(0, on_device(frames)));
  const Value tokens = attend_frames(no_grad, ops, queries, chosen, maps_too ? &maps : nullptr);
  seen.tokens.data.index_copy_(0, places, tokens.data.narrow(0, 0, count));
  if (maps_too) {
    const at::Tensor of_frames = maps.stacked().narrow(0, 0, count);
    if (!seen.attention.defined()) {
      auto shape = of_frames.sizes().vec();
      shape[0] = seen.tokens.data.size(0);
      seen.attention = at::zeros(shape, of_frames.options());
    }
    seen.attention.index_copy_(0, places, of_frames);
  }
  if (next.empty()) return;
  const StagedRows staged(rows, tokens.data.device(), tokens.data.size(0));
  const Value hidden(parts_.decoder.forward(ops, tokens.data, kv_pages, staged));
  const at::Tensor made = projections_.query_from_hidden(no_grad, ops, hidden).data;
  seen.queries.data.index_copy_(0, on_device(next), made.index_select(0, on_device(has_next)));
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

double FoveatedConnector::flops(const FlopsRequest& request) const {
  const auto& [tokens, work, trained, mode] = request;
  const int64_t query = settings_.query_dim, width = parts_.encoder.width(), decoder = parts_.decoder.width();
  const ForwardFlops projections{
      product_flops(query, width) + product_flops(width, width) + product_flops(width, decoder), 0};
  const auto attend = [&](double frames, const TrainedParts& of, bool inputs) {
    return frames * encoder_.attend_flops(tokens, settings_.shallow(), of.vision, inputs) +
           with_backward(projections * frames, of.connector, inputs);
  };
  const auto make_queries = [&](const TrainedParts& of, bool inputs) {
    return parts_.decoder.flops(work.frames, work.frame_pairs, of.decoder, inputs) +
           with_backward(ForwardFlops{product_flops(decoder, query), 0} * work.frames, of.connector, inputs);
  };
  const bool any = trained.any(); // a gradient goes all the way back to the queries
  const double fine = work.encoded_frames * encoder_.encode_flops(tokens, trained.vision) + make_queries(trained, any) +
                      attend(work.frames, trained, any);
  if (mode == "refined") // the static query's tokens, the first queries and what they read: without a gradient
    return fine + attend(work.encoded_frames, {}, false) + attend(work.frames, {}, false) + make_queries({}, false);
  return fine + attend(work.encoded_frames, trained, any);
}

} // namespace

std::unique_ptr<Connector> foveated_connector(const plan::ConnectorSettings& settings, const Parts& parts,
                                              Parameters& parameters) {
  return std::make_unique<FoveatedConnector>(static_cast<const connector::Foveated&>(settings), parts, parameters);
}

} // namespace fvlm::model
