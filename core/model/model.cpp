#include "model/model.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/tensor.h>

#include <algorithm>
#include <bit>

namespace fvlm::model {
namespace {

constexpr int64_t kv_cache_step = 256; // capacities are multiples of this, so that allocations are reused

} // namespace

Model::Model(const ModelConfig& config, const ArenaOptions& options)
    : config_(config), parameters_(blocks_of(config.vision, config.connector, config.decoder), options),
      encoder_(make_encoder(config.vision, parameters_)), decoder_(make_decoder(config.decoder, parameters_)),
      connector_(make_connector(*config.connector, {*encoder_, *decoder_, speed}, parameters_)) {}

FrameReader Model::frame_reader(int64_t height, int64_t width) const {
  const int64_t tokens = encoder_->tokens_per_frame(height, width);
  return {*connector_, tokens, config_.connector->rows_per_frame([&] { return tokens; }), encoder_->reads_bytes()};
}

FrameReader Model::frame_reader(const at::Tensor& frames) const {
  return encoder_->reads_bytes() ? frame_reader(0, 0) : frame_reader(frames.size(2), frames.size(3));
}

VisualTokens Model::encode(Tape& tape, Operations& ops, const Pack& pack, std::string_view mode, EncodeOutputs outputs,
                           const PhaseCallback& on_phase) const {
  if (!pack.encoder_input().defined()) return {};
  return connector_->encode(tape, ops, pack, {mode, outputs, on_phase});
}

double Model::flops(int64_t tokens, const Work& work, const TrainedParts& trained, std::string_view mode) const {
  const bool any = trained.any(); // a gradient goes all the way back to the visual tokens
  return connector_->flops({tokens, work, trained, mode}) +
         decoder_->flops(work.rows, work.pairs, trained.decoder, any) +
         decoder_->head_flops(work.labels, trained.decoder, any);
}

int64_t Model::prompt_rows(const at::Tensor& frames, const std::vector<int64_t>& prompt) const {
  const int64_t count = frames_of(frames), placeholders = placeholders_of(prompt);
  const int64_t each = count > 0 ? frame_reader(frames).rows_per_frame : 1;
  require_placeholders(placeholders, count, each);
  return count * each + static_cast<int64_t>(prompt.size()) - placeholders;
}

// The prompt's rows, with the visual tokens of the frames in place of its placeholders.
at::Tensor Model::embed_prompt(Operations& ops, const at::Tensor& frames, std::vector<int64_t> prompt,
                               std::string_view mode) const {
  std::vector<int64_t> places;
  for (size_t i = 0; i < prompt.size(); ++i) {
    if (prompt[i] != visual_placeholder) continue;
    places.push_back(static_cast<int64_t>(i));
    prompt[i] = 0;
  }
  const auto index = [&](const std::vector<int64_t>& values) {
    return at::tensor(values, at::kLong).to(ops.options().device);
  };
  at::Tensor rows = decoder_->embedding().value().index_select(0, index(prompt));
  if (!places.empty())
    rows.index_copy_(0, index(places), connector_->encode_frames(ops, frames, mode).to(rows.scalar_type()));
  return rows;
}

std::vector<int64_t> Model::generate(Operations& ops, const at::Tensor& frames, const std::vector<int64_t>& prompt,
                                     const StopCondition& stop, const Sampling& sampling, const TokenCallback& on_token,
                                     std::string_view mode) const {
  const Sampler sampler(sampling);
  Tape no_grad(Tape::Mode::forward_only);
  const int64_t count = frames_of(frames);
  const int64_t length = prompt_rows(frames, prompt) + stop.max_tokens;
  KvCache kv_cache = decoder_->make_kv_cache(ops, (length + kv_cache_step - 1) / kv_cache_step * kv_cache_step);
  if (count > 0 && placeholders_of(prompt) == 0) connector_->prefill(ops, frames, kv_cache);
  const auto feed = [&](const at::Tensor& rows) { return decoder_->forward(ops, rows, kv_cache); };
  // In power-of-two pieces, so that plans that plugins prepared for one prompt can be reused for others.
  at::Tensor hidden;
  for (at::Tensor rest = embed_prompt(ops, frames, prompt, mode); rest.size(0) > 0;) {
    const auto piece = static_cast<int64_t>(std::bit_floor(static_cast<uint64_t>(rest.size(0))));
    hidden = feed(rest.narrow(0, 0, piece));
    rest = rest.narrow(0, piece, rest.size(0) - piece);
  }
  std::vector<int64_t> generated;
  while (static_cast<int64_t>(generated.size()) < stop.max_tokens) {
    const Value last(hidden.narrow(0, hidden.size(0) - 1, 1));
    const at::Tensor logits = decoder_->logits(no_grad, ops, last).data[0];
    generated.push_back(sampler.pick(logits, static_cast<int64_t>(generated.size())));
    if (std::find(stop.end_tokens.begin(), stop.end_tokens.end(), generated.back()) != stop.end_tokens.end()) break;
    if (on_token && !on_token(generated.back())) break;
    if (static_cast<int64_t>(generated.size()) < stop.max_tokens)
      hidden = feed(embed_prompt(ops, {}, {generated.back()}, mode));
  }
  return generated;
}

Value Model::decode(Tape& tape, Operations& ops, const Value& visual, const Pack& pack,
                    const ops::SharedGradientPass& pass) const {
  const Value shown = pack.visual_source.defined() ? ops::gather_rows(tape, visual, pack.visual_source) : visual;
  const Value x = ops::embed(tape, decoder_->embedding(), shown, pack.sequence);
  return decoder_->forward(tape, ops, x, pack.texts, pass);
}

} // namespace fvlm::model
