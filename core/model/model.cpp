#include "model/model.h"

namespace fvlm::model {

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

Value Model::decode(Tape& tape, Operations& ops, const Value& visual, const Pack& pack,
                    const ops::SharedGradientPass& pass) const {
  const Value shown = pack.visual_source.defined() ? ops::gather_rows(tape, visual, pack.visual_source) : visual;
  const Value x = ops::embed(tape, decoder_->embedding(), shown, pack.sequence);
  return decoder_->forward(tape, ops, x, pack.texts, pass);
}

} // namespace fvlm::model
