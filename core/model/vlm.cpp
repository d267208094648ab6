#include "model/vlm.h"

#include "base/error.h"
#include "model/decoder/llama.h"
#include "model/joint_gradients.h"
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

constexpr int64_t memory_step = 256; // rows by which a decoder's memory grows from one answer to the next

// The towers and decoders there are, by Hugging Face's model_type.
template <class Part, class Config>
struct Row {
  std::string_view model_type;
  std::unique_ptr<Part> (*make)(const Config&, Parameters&);
};
template <class Part, class Made, class Config>
std::unique_ptr<Part> make(const Config& config, Parameters& parameters) {
  return std::make_unique<Made>(config, parameters);
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

NamedMode mode_named(std::string_view name) {
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

Value Vlm::look(Tape& tape, Operations& ops, const Value& queries, const VisualCache& cache,
                AttentionMaps* maps) const {
  const Value entered = connector_.enter(tape, ops, queries);
  return connector_.shown(tape, ops, tower_->attend(tape, ops, entered, cache, config_.connector.shallow, maps));
}

// A frozen tower needs no backward pass, but for what rides through it.
bool Vlm::rides(const Tape& tape) const {
  return speed.coarse_in_tower && !config_.connector.shallow && (!tape.records() || tower_->trains());
}

bool Vlm::shares_products(const Tape& tape, const Operations& ops, const Pack& pack) const {
  const auto element = static_cast<int64_t>(c10::elementSize(ops.options().dtype));
  return speed.joint_weight_gradients && tape.keeps_steps() && !decoder_->recompute.light &&
         may_wait(config_.decoder, pack.sequence.tokens.size(0), element);
}

Vlm::Seen Vlm::see(Tape& tape, Operations& ops, const Pack& pack, Mode mode, Show show, const Done& done) const {
  if (!pack.frames.defined()) return {};
  const auto encode = [&] { return tower_->encode(tape, ops, pack.frames, pack.patches, pack.readers, savings()); };
  if (mode == Mode::autoregressive) {
    const VisualCache cache = encode();
    done("vision");
    Seen seen = room_for(ops, pack.frames.size(0));
    const at::Tensor starts = pack.videos.starts.cpu();
    for (int64_t video = 0; video + 1 < starts.size(0); ++video) {
      const int64_t begin = starts[video].item<int64_t>(), end = starts[video + 1].item<int64_t>();
      DecoderMemory memory = decoder_->remember(ops, end - begin);
      watch(ops, cache, begin, end, memory, seen, show);
    }
    return seen;
  }
  AttentionMaps shown;
  AttentionMaps* const maps = show == Show::attention_too ? &shown : nullptr;
  const auto seen = [&](const Value& tokens, const Value& coarse, const Value& queries) -> Seen {
    return {tokens, coarse, queries, maps ? shown.joined() : at::Tensor(), {}};
  };
  const Value fixed = connector_.static_query(tape, pack.frames.size(0));
  const bool ends_coarse = mode == Mode::coarse_only;
  VisualCache cache;
  Value coarse;
  if (rides(tape) && !(ends_coarse && maps)) {
    auto read =
        tower_->encode_and_attend(tape, ops, pack.frames, connector_.enter(tape, ops, fixed), pack.riding, savings());
    done("vision");
    cache = std::move(read.cache);
    coarse = connector_.shown(tape, ops, read.seen);
  } else {
    cache = encode();
    done("vision");
    coarse = look(tape, ops, fixed, cache, ends_coarse ? maps : nullptr);
  }
  if (ends_coarse) return seen(coarse, coarse, fixed);
  std::array<ops::JointPass, 2> passes;
  if (shares_products(tape, ops, pack)) passes = ops::JointPass::both(pack.sequence.tokens.size(0));
  Value read_before = coarse;
  if (mode == Mode::refined) { // without a gradient
    Tape none(Tape::Mode::forward_only);
    const Value first = queries_from(none, ops, Value(coarse.data), pack, {});
    read_before = Value(look(none, ops, first, cache).data);
  }
  const Value queries = queries_from(tape, ops, read_before, pack, passes[0]);
  done("coarse");
  const Value fine = look(tape, ops, queries, cache, maps);
  done("fine");
  Seen both = seen(fine, coarse, queries);
  both.next = passes[1];
  return both;
}

Value Vlm::queries_from(Tape& tape, Operations& ops, const Value& tokens, const Pack& pack,
                        const ops::JointPass& pass) const {
  const Value asked = connector_.ask(tape, ops, decoder_->forward(tape, ops, tokens, pack.videos, pass, true));
  return connector_.shifted(tape, asked, pack.query_source);
}

// One video's frames in order, each read with the query the decoder made of those before it.
void Vlm::watch(Operations& ops, const VisualCache& cache, int64_t begin, int64_t end, DecoderMemory& memory,
                Seen& seen, Show show) const {
  Tape none(Tape::Mode::forward_only);
  const int64_t rows = cache.tokens.longest;
  const at::Device device = seen.tokens.data.device();
  const auto segment = [&](int64_t length) {
    return Segments{at::tensor({int64_t{0}, length}, at::kInt).to(device), {}, length};
  };
  const Segments one_reader = segment(1), one_frame = segment(rows);
  Value query = connector_.first_query(none);
  for (int64_t frame = begin; frame < end; ++frame) {
    const auto of_frame = [&](const Heads& heads) {
      return Heads{Value(heads.value.data.narrow(0, frame * rows, rows)), heads.column, heads.count};
    };
    VisualCache now{{}, one_frame, one_reader, cache.folded};
    for (const auto& layer : cache.layers) now.layers.push_back({of_frame(layer.keys), of_frame(layer.values)});
    AttentionMaps maps;
    const Value token = look(none, ops, query, now, show == Show::attention_too ? &maps : nullptr);
    if (show == Show::attention_too) {
      const at::Tensor map = maps.joined();
      if (!seen.attention.defined()) {
        auto shape = map.sizes().vec();
        shape[0] = seen.tokens.data.size(0);
        seen.attention = at::zeros(shape, map.options());
      }
      seen.attention.narrow(0, frame, 1).copy_(map);
    }
    seen.queries.data.narrow(0, frame, 1).copy_(query.data);
    seen.tokens.data.narrow(0, frame, 1).copy_(token.data);
    query = connector_.ask(none, ops, Value(decoder_->forward(ops, token.data, memory)));
  }
}

Vlm::Seen Vlm::room_for(const Operations& ops, int64_t frames) const {
  return {Value(at::zeros({frames, decoder_->width()}, ops.tensor_options())),
          {},
          Value(at::zeros({frames, config_.connector.query_dim}, ops.tensor_options())),
          {},
          {}};
}

std::vector<int64_t> Vlm::generate(Operations& ops, const at::Tensor& frames, const std::vector<int64_t>& prompt,
                                   const Until& until, const Sampling& sampling, const TakeToken& take) const {
  const Sampler sampler(sampling);
  Tape none(Tape::Mode::forward_only);
  const int64_t count = frames.defined() ? frames.size(0) : 0;
  const int64_t length = count + static_cast<int64_t>(prompt.size()) + until.tokens;
  DecoderMemory memory = decoder_->remember(ops, (length + memory_step - 1) / memory_step * memory_step);
  if (count > 0) {
    const int64_t rows = tower_->tokens_per_frame(frames.size(2), frames.size(3));
    const at::Tensor each = at::arange(count + 1, at::TensorOptions(frames.device()).dtype(at::kInt));
    const Segments tokens{each * rows, {}, rows}, readers{each, {}, 1};
    Seen seen = room_for(ops, count);
    watch(ops, tower_->encode(none, ops, frames, tokens, readers, savings()), 0, count, memory, seen);
  }
  const auto said = [&](std::span<const int64_t> tokens) {
    const at::Tensor index = at::tensor(at::IntArrayRef(tokens), at::kLong).to(ops.options().device);
    return decoder_->forward(ops, decoder_->embedding().value().index_select(0, index), memory);
  };
  // In pieces of few sizes, so that what plugins prepared for one prompt serves the others.
  at::Tensor hidden;
  for (std::span<const int64_t> rest = prompt; !rest.empty();) {
    const size_t piece = std::bit_floor(rest.size());
    hidden = said(rest.first(piece));
    rest = rest.subspan(piece);
  }
  std::vector<int64_t> made;
  while (static_cast<int64_t>(made.size()) < until.tokens) {
    const Value last(hidden.narrow(0, hidden.size(0) - 1, 1));
    const at::Tensor logits = ops.linear(none, last, decoder_->head()).data[0];
    made.push_back(sampler.pick(logits, static_cast<int64_t>(made.size())));
    if (std::find(until.ends.begin(), until.ends.end(), made.back()) != until.ends.end()) break;
    if (take && !take(made.back())) break;
    if (static_cast<int64_t>(made.size()) < until.tokens) hidden = said({&made.back(), 1});
  }
  return made;
}

Value Vlm::read(Tape& tape, Operations& ops, const Value& visual, const Pack& pack, const ops::JointPass& pass) const {
  const Value shown = pack.visual_source.defined() ? ops::take_rows(tape, visual, pack.visual_source) : visual;
  const Value x = ops::embed(tape, decoder_->embedding(), shown, pack.sequence);
  return decoder_->forward(tape, ops, x, pack.texts, pass);
}

} // namespace fvlm::model
