#include "model/vlm.h"

#include "base/error.h"
#include "model/decoder/llama.h"
#include "model/shared_weight_gradients.h"
#include "model/vision/attention_maps.h"
#include "model/vision/dinov2.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <span>

namespace fvlm::model {
namespace {

constexpr int64_t kv_cache_step = 256; // capacities are multiples of this, so that allocations are reused

// The built-in towers and decoders, by Hugging Face's model_type.
template <class Part, class Config>
struct Row {
  std::string_view model_type;
  std::unique_ptr<Part> (*make)(const Config&, Parameters&);
};
template <class Part, class Built, class Config>
std::unique_ptr<Part> make(const Config& config, Parameters& parameters) {
  return std::make_unique<Built>(config, parameters);
}
const Row<VisionTower, VisionConfig> towers[] = {
    {"dinov2", make<VisionTower, Dinov2, VisionConfig>},
};
const Row<Decoder, DecoderConfig> decoders[] = {
    {"llama", make<Decoder, Llama, DecoderConfig>},
};

template <class Row, size_t N>
const Row& row_of(const Row (&rows)[N], std::string_view model_type, const char* what) {
  for (const Row& row : rows)
    if (row.model_type == model_type) return row;
  throw Error(ErrorKind::data, fmt::format("no {} of model_type '{}' is built in", what, model_type));
}

} // namespace

NamedMode parse_mode(std::string_view name) {
  if (name == "coarse_fine") return {Mode::coarse_fine, false};
  if (name == "refined") return {Mode::refined, false};
  if (name == "coarse_only") return {Mode::coarse_only, false};
  if (name == "autoregressive") return {Mode::autoregressive, false};
  if (name == "shallow") return {Mode::coarse_fine, true};
  throw Error(ErrorKind::usage, fmt::format("there is no mode '{}'", name))
      .advise("coarse_fine, refined, coarse_only, autoregressive or shallow");
}

Vlm::Vlm(const VlmConfig& config, const ArenaOptions& options)
    : config_(config), parameters_(blocks_of(config.vision, config.connector, config.decoder), options),
      tower_(row_of(towers, config.vision.model_type, "vision tower").make(config.vision, parameters_)),
      decoder_(row_of(decoders, config.decoder.model_type, "decoder").make(config.decoder, parameters_)),
      connector_(config.connector, parameters_) {}

Value Vlm::attend_frames(Tape& tape, Operations& ops, const Value& queries, const VisualCache& cache,
                         AttentionMaps* maps) const {
  const Value projected = connector_.project_query(tape, ops, queries);
  return connector_.to_visual_tokens(tape, ops,
                                     tower_->attend(tape, ops, projected, cache, config_.connector.shallow, maps));
}

// With a frozen tower, appended queries would force a backward pass through all of its tokens.
bool Vlm::appends_coarse_queries(const Tape& tape) const {
  return speed.coarse_in_tower && !config_.connector.shallow && (!tape.records() || tower_->trains());
}

bool Vlm::shares_products(const Tape& tape, const Operations& ops, const Pack& pack) const {
  const auto element = static_cast<int64_t>(c10::elementSize(ops.options().dtype));
  return speed.joint_weight_gradients && tape.keeps_steps() && !decoder_->recompute.light &&
         can_defer_gradients(config_.decoder, pack.sequence.tokens.size(0), element);
}

Vlm::VisualTokens Vlm::encode(Tape& tape, Operations& ops, const Pack& pack, Mode mode, Outputs outputs,
                              const PhaseCallback& on_phase_end) const {
  if (!pack.frames.defined()) return {};
  const auto encode = [&] {
    return tower_->encode(tape, ops, pack.frames, pack.patches, pack.queries, encode_options());
  };
  if (mode == Mode::autoregressive) {
    const VisualCache cache = encode();
    on_phase_end("vision");
    VisualTokens seen = allocate_visual_tokens(ops, pack.frames.size(0));
    const at::Tensor starts = pack.videos.cu_seqlens.cpu();
    for (int64_t video = 0; video + 1 < starts.size(0); ++video) {
      const int64_t begin = starts[video].item<int64_t>(), end = starts[video + 1].item<int64_t>();
      KvCache kv_cache = decoder_->make_kv_cache(ops, end - begin);
      decode_frames_autoregressive(ops, cache, begin, end, kv_cache, seen, outputs);
    }
    return seen;
  }
  AttentionMaps shown;
  AttentionMaps* const maps = outputs == Outputs::tokens_and_attention ? &shown : nullptr;
  const auto seen = [&](const Value& tokens, const Value& coarse, const Value& queries) -> VisualTokens {
    return {tokens, coarse, queries, maps ? shown.stacked() : at::Tensor(), {}};
  };
  const Value fixed = connector_.static_query(tape, pack.frames.size(0));
  const bool coarse_only = mode == Mode::coarse_only;
  VisualCache cache;
  Value coarse;
  if (appends_coarse_queries(tape) && !(coarse_only && maps)) {
    auto both = tower_->encode_and_attend(tape, ops, pack.frames, connector_.project_query(tape, ops, fixed),
                                          pack.appended, encode_options());
    on_phase_end("vision");
    cache = std::move(both.cache);
    coarse = connector_.to_visual_tokens(tape, ops, both.attended);
  } else {
    cache = encode();
    on_phase_end("vision");
    coarse = attend_frames(tape, ops, fixed, cache, coarse_only ? maps : nullptr);
  }
  if (coarse_only) return seen(coarse, coarse, fixed);
  std::array<ops::SharedGradientPass, 2> passes;
  if (shares_products(tape, ops, pack)) passes = ops::SharedGradientPass::make_pair(pack.sequence.tokens.size(0));
  Value previous_tokens = coarse;
  if (mode == Mode::refined) { // without a gradient
    Tape no_grad(Tape::Mode::forward_only);
    const Value first = next_queries(no_grad, ops, Value(coarse.data), pack, {});
    previous_tokens = Value(attend_frames(no_grad, ops, first, cache).data);
  }
  const Value queries = next_queries(tape, ops, previous_tokens, pack, passes[0]);
  on_phase_end("coarse");
  const Value fine = attend_frames(tape, ops, queries, cache, maps);
  on_phase_end("fine");
  VisualTokens both = seen(fine, coarse, queries);
  both.next = passes[1];
  return both;
}

Value Vlm::next_queries(Tape& tape, Operations& ops, const Value& tokens, const Pack& pack,
                        const ops::SharedGradientPass& pass) const {
  const Value own_queries =
      connector_.query_from_hidden(tape, ops, decoder_->forward(tape, ops, tokens, pack.videos, pass, true));
  return connector_.shift_right(tape, own_queries, pack.query_source);
}

// One video's frames in order, each with the query that the decoder made of the previous ones.
void Vlm::decode_frames_autoregressive(Operations& ops, const VisualCache& cache, int64_t begin, int64_t end,
                                       KvCache& kv_cache, VisualTokens& seen, Outputs outputs) const {
  Tape no_grad(Tape::Mode::forward_only);
  const int64_t rows = cache.tokens.max_length;
  const at::Device device = seen.tokens.data.device();
  const auto segment = [&](int64_t length) {
    return Segments{at::tensor({int64_t{0}, length}, at::kInt).to(device), {}, length};
  };
  const Segments one_query = segment(1), one_frame = segment(rows);
  Value query = connector_.first_query(no_grad);
  for (int64_t frame = begin; frame < end; ++frame) {
    const auto of_frame = [&](const Heads& heads) {
      return Heads{Value(heads.value.data.narrow(0, frame * rows, rows)), heads.column, heads.count};
    };
    VisualCache frame_cache{{}, one_frame, one_query, cache.folded};
    for (const auto& layer : cache.layers) frame_cache.layers.push_back({of_frame(layer.keys), of_frame(layer.values)});
    AttentionMaps maps;
    const Value token =
        attend_frames(no_grad, ops, query, frame_cache, outputs == Outputs::tokens_and_attention ? &maps : nullptr);
    if (outputs == Outputs::tokens_and_attention) {
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
    query = connector_.query_from_hidden(no_grad, ops, Value(decoder_->forward(ops, token.data, kv_cache)));
  }
}

Vlm::VisualTokens Vlm::allocate_visual_tokens(const Operations& ops, int64_t frames) const {
  return {Value(at::zeros({frames, decoder_->width()}, ops.tensor_options())),
          {},
          Value(at::zeros({frames, config_.connector.query_dim}, ops.tensor_options())),
          {},
          {}};
}

std::vector<int64_t> Vlm::generate(Operations& ops, const at::Tensor& frames, const std::vector<int64_t>& prompt,
                                   const StopCondition& stop, const Sampling& sampling,
                                   const TokenCallback& on_token) const {
  const Sampler sampler(sampling);
  Tape no_grad(Tape::Mode::forward_only);
  const int64_t count = frames.defined() ? frames.size(0) : 0;
  const int64_t length = count + static_cast<int64_t>(prompt.size()) + stop.max_tokens;
  KvCache kv_cache = decoder_->make_kv_cache(ops, (length + kv_cache_step - 1) / kv_cache_step * kv_cache_step);
  if (count > 0) {
    const int64_t rows = tower_->tokens_per_frame(frames.size(2), frames.size(3));
    const at::Tensor each = at::arange(count + 1, at::TensorOptions(frames.device()).dtype(at::kInt));
    const Segments tokens{each * rows, {}, rows}, queries{each, {}, 1};
    VisualTokens seen = allocate_visual_tokens(ops, count);
    decode_frames_autoregressive(ops, tower_->encode(no_grad, ops, frames, tokens, queries, encode_options()), 0, count,
                                 kv_cache, seen);
  }
  const auto feed = [&](std::span<const int64_t> tokens) {
    const at::Tensor index = at::tensor(at::IntArrayRef(tokens), at::kLong).to(ops.options().device);
    return decoder_->forward(ops, decoder_->embedding().value().index_select(0, index), kv_cache);
  };
  // In power-of-two pieces, so that plans that plugins prepared for one prompt can be reused for others.
  at::Tensor hidden;
  for (std::span<const int64_t> rest = prompt; !rest.empty();) {
    const size_t piece = std::bit_floor(rest.size());
    hidden = feed(rest.first(piece));
    rest = rest.subspan(piece);
  }
  std::vector<int64_t> generated;
  while (static_cast<int64_t>(generated.size()) < stop.max_tokens) {
    const Value last(hidden.narrow(0, hidden.size(0) - 1, 1));
    const at::Tensor logits = ops.linear(no_grad, last, decoder_->head()).data[0];
    generated.push_back(sampler.pick(logits, static_cast<int64_t>(generated.size())));
    if (std::find(stop.end_tokens.begin(), stop.end_tokens.end(), generated.back()) != stop.end_tokens.end()) break;
    if (on_token && !on_token(generated.back())) break;
    if (static_cast<int64_t>(generated.size()) < stop.max_tokens) hidden = feed({&generated.back(), 1});
  }
  return generated;
}

Value Vlm::decode(Tape& tape, Operations& ops, const Value& visual, const Pack& pack,
                  const ops::SharedGradientPass& pass) const {
  const Value shown = pack.visual_source.defined() ? ops::gather_rows(tape, visual, pack.visual_source) : visual;
  const Value x = ops::embed(tape, decoder_->embedding(), shown, pack.sequence);
  return decoder_->forward(tape, ops, x, pack.texts, pass);
}

} // namespace fvlm::model
