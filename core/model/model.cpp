#include "model/model.h"

#include "base/error.h"

#include <ATen/ops/zeros.h>

namespace fvlm::model {

std::vector<DecoderConfig> ModelConfig::decoders() const {
  std::vector<DecoderConfig> all{decoder};
  all.insert(all.end(), further.begin(), further.end());
  return all;
}

RowPositionRules ModelConfig::row_positions() const {
  if (vision.rows_as_text) return {};
  return {vision.canvas ? RowAxes::canvas : decoder.row_axes(), vision.tokens_per_second,
          vision.canvas.value_or(CanvasTokens())};
}

namespace {

ArenaOptions with_frozen_base(ArenaOptions options, const Adapters& adapters) {
  options.trains = [&adapters, trains = options.trains](const ParameterSpec& spec) {
    return trains(spec) && !is_in_base(adapters, spec.name);
  };
  options.rank_of = [&adapters](const ParameterSpec& spec) { return joined_rank(adapters, spec.name); };
  return options;
}

// What published models have behind encoders of cells.
const char* usual_connector(const VisionConfig& encoder) {
  const std::string& type = encoder.model_type;
  if (type == "pixtral") return "fvlm.mistral3";
  const bool is_lfm =
      encoder.rows_as_text || encoder.canvas || type == "siglip2_vision_model" || type == "lfm3_vl_vision";
  return is_lfm ? "fvlm.lfm2_vl" : "fvlm.qwen2_vl";
}

} // namespace

Model::Model(const ModelConfig& config, const ArenaOptions& options)
    : config_(config), dropout_seed_(at::zeros({}, at::TensorOptions(options.device).dtype(at::kLong))),
      parameters_(std::make_shared<Parameters>(
          with_adapters(blocks_of(config.vision, config.connector, config.decoders()), config.adapters),
          with_frozen_base(options, config.adapters))),
      encoder_(make_encoder(config.vision, *parameters_)),
      decoder_(make_decoder(config.decoder, *parameters_, plan::decoder_name(0))) {
  if (encoder_->reads_cells() && config.connector->known_rows_per_frame())
    throw Error(
        ErrorKind::data,
        "the connector '{}' reads frames that are whole images, and those of the encoder '{}' are cells of images",
        config.connector->name(), config.vision.model_type)
        .advise("use the connector {}", usual_connector(config.vision));
  attach_adapters(*parameters_, config.adapters, dropout_seed_);
  if (config.vision.canvas && config.decoder.row_axes() != RowAxes::mrope)
    throw Error(ErrorKind::data,
                "the rows of the encoder '{}' have positions on a canvas, and those of the decoder "
                "'{}' have one each",
                config.vision.model_type, config.decoder.model_type)
        .advise("take a decoder with M-RoPE, such as a Qwen3.5");
  for (const DecoderConfig& other : config.further)
    if (other.row_axes() != config.decoder.row_axes())
      throw Error(ErrorKind::data, "decoders with and without M-RoPE cannot read the same frames")
          .advise("take decoders that all have 'mrope_section' in their config.json, or none that has");
  Parts parts{*encoder_, *decoder_, speed};
  std::vector<std::shared_ptr<Decoder>> others;
  for (size_t i = 0; i < config.further.size(); ++i) {
    others.push_back(make_decoder(config.further[i], *parameters_, plan::decoder_name(i + 1)));
    parts.further.push_back(others.back().get());
  }
  connector_ = make_connector(*config.connector, parts, *parameters_);
  require_deepstack();
  for (size_t i = 0; i < others.size(); ++i)
    further_.push_back(std::unique_ptr<Model>(new Model(*this, i + 1, std::move(others[i]))));
}

Model::Model(const Model& first, size_t index, std::shared_ptr<Decoder> decoder)
    : config_{first.config_.vision, first.config_.further[index - 1], first.config_.connector},
      parameters_(first.parameters_), encoder_(first.encoder_), decoder_(std::move(decoder)),
      connector_(first.connector_), index_(index) {}

void Model::set_recompute(const Recompute& encoder, const Recompute& decoders) {
  encoder_->recompute = encoder;
  decoder_->recompute = decoders;
  for (const auto& other : further_) other->decoder_->recompute = decoders;
}

void Model::mix_adapters(const std::map<std::string, std::vector<int32_t>>& owners) {
  row_adapters_ = std::make_shared<ops::RowAdapters>();
  model::mix_adapters(*parameters_, owners, row_adapters_);
}

void Model::select_adapters(const at::Tensor& of_rows) const {
  if (row_adapters_) row_adapters_->select(of_rows);
}

void Model::require_deepstack() const {
  const int64_t used = connector_->deepstack_layers(), offered = std::ssize(config_.vision.deepstack_visual_indexes);
  if (used != offered)
    throw Error(ErrorKind::data, "the connector reads {} further layers of the encoder, whose config names {}", used,
                offered)
        .advise("give the connector as many, fvlm.{} {{ deepstack = {} }}, or another encoder",
                config_.vision.reads_cells() ? "qwen2_vl" : "granite_docling", offered);
  for (const DecoderConfig& decoder : config_.decoders())
    if (used > decoder.num_hidden_layers)
      throw Error(ErrorKind::data, "images have rows for {} layers of a decoder that has {}", used,
                  decoder.num_hidden_layers)
          .advise("take a decoder of more layers, or an encoder with fewer 'deepstack_visual_indexes'");
}

FrameReader Model::frame_reader(int64_t height, int64_t width) const {
  const int64_t tokens = encoder_->tokens_per_frame(height, width);
  return {*connector_,
          tokens,
          config_.connector->rows_per_frame([&] { return tokens; }),
          encoder_->reads_bytes(),
          encoder_->reads_cells() ? encoder_.get() : nullptr,
          config_.row_positions()};
}

FrameReader Model::frame_reader(const at::Tensor& frames) const {
  return encoder_->reads_bytes() ? frame_reader(0, 0) : frame_reader(frames.size(2), frames.size(3));
}

VisualTokens Model::encode(Tape& tape, Operations& ops, const Pack& pack, std::string_view mode, EncodeOutputs outputs,
                           const PhaseCallback& on_phase) const {
  if (!pack.encoder_input().defined()) return {};
  return connector_->encode(tape, ops, pack, {mode, outputs, on_phase, index_});
}

std::vector<Value> Model::encode_for_all(Tape& tape, Operations& ops, const Pack& pack, std::string_view mode,
                                         const PhaseCallback& on_phase) const {
  if (!pack.encoder_input().defined()) return std::vector<Value>(decoders());
  return connector_->encode_for_all(tape, ops, pack, {mode, EncodeOutputs::tokens, on_phase});
}

Value Model::adapt(Tape& tape, Operations& ops, const Value& latents, const Pack& pack) const {
  return latents.defined() ? connector_->adapt(tape, ops, latents, pack.frame_slots, index_) : Value();
}

double Model::flops(int64_t tokens, const Work& work, const TrainedParts& trained, std::string_view mode) const {
  const bool any = trained.any(); // a gradient goes all the way back to the visual tokens
  const Connector::FlopsRequest request{tokens, work, trained, mode};
  return (index_ == 0 ? connector_->flops(request) : connector_->further_flops(request, index_)) +
         decoder_->flops(work.rows, work.pairs, trained.decoder, any) +
         decoder_->head_flops(work.labels, trained.decoder, any);
}

int64_t Model::prompt_rows(const Sample& sample) const {
  const auto& prompt = sample.texts.at(0).tokens;
  const int64_t count = frames_of(sample);
  const int64_t each = count > 0 ? frame_reader(sample.frames).rows_per_frame : 1;
  require_placeholders(prompt, count, each);
  return rows_of(prompt, count, each);
}

Value Model::decode(Tape& tape, Operations& ops, const Value& visual, const Pack& pack,
                    const ops::SharedGradientPass& pass) const {
  Value shown = visual.defined() ? visual_rows(tape, visual, pack) : visual;
  AddedRows added;
  if (connector_->deepstack_layers() > 0 && shown.defined()) {
    const Value all = shown;
    const int64_t width = decoder_->width();
    shown = ops.slice_columns(tape, all, 0, width);
    added.places = pack.sequence.visual_rows;
    for (int64_t first = width; first < all.data.size(1); first += width)
      added.by_layer.push_back(ops.slice_columns(tape, all, first, width));
  }
  const Value x =
      ops::embed(tape, decoder_->embedding(), shown, pack.sequence, ops.options().dtype, decoder_->token_scale());
  added.of_tokens = decoder_->token_rows(tape, pack.sequence, ops.options().dtype);
  // Kahan compensation wherever gradients follow: without it some of them have a cosine below 0.999 with float32's.
  return decoder_->forward(tape, ops, x, pack.texts, pass, tape.records(x), added);
}

} // namespace fvlm::model
