#include "cli/import_checks.h"

#include "base/error.h"
#include "base/log.h"
#include "data/media/frame_preparation.h"
#include "model/connector/mlp/settings.h"
#include "model/weights/generation_config.h"

#include <nlohmann/json.hpp>

#include <system_error>
#include <utility>

namespace fvlm::cli {
namespace {

// transformers cuts images by the image processor's grids, and puts the tiles together by those of config.json.
void check_grids(const std::filesystem::path& model, const ModelDescription& description) {
  const auto* connector = description.connector().as<connector::Mlp>();
  if (!connector || !connector->newline) return;
  const auto processor = find_image_processor(model);
  const TileForm form = connector->video_pooling ? TileForm::llava_onevision : TileForm::llava_next;
  if (!processor || processor->tile_form != form)
    throw Error(ErrorKind::data, "the model reads images in tiles, and there is no image processor that cuts them so")
        .at((model / "preprocessor_config.json").string())
        .advise("copy preprocessor_config.json of this very model here");
  if (const int64_t tile = *processor->tile, size = description.encoder().image_size; tile != size)
    throw Error(ErrorKind::data, "tiles have {} pixels a side, and the encoder of config.json reads {}", tile, size)
        .at((model / "preprocessor_config.json").string())
        .advise("take config.json and preprocessor_config.json of the same model");
  const nlohmann::json& config = description.sole_part(Role::decoder).folder.whole_model.at("config");
  const nlohmann::json expected = config.value("image_grid_pinpoints", nlohmann::json());
  nlohmann::json grids = nlohmann::json::array();
  for (const ImageSize& grid : processor->grids)
    grids.push_back({grid.height * *processor->tile, grid.width * *processor->tile});
  if (expected.is_null() || expected == grids) return;
  throw Error(ErrorKind::data, "'image_grid_pinpoints' is {} in config.json and {} for the image processor",
              expected.dump(), grids.dump())
      .at(model.string())
      .advise("take config.json and preprocessor_config.json of the same model");
}

void check_whole_model(const std::filesystem::path& model, const ModelDescription& description,
                       int64_t image_token_id) {
  if (description.connector()->reads_frames()) check_image_processor(model, description.encoder());
  check_grids(model, description);
  (void)end_tokens(model, {});
  (void)recommended_sampling(model);
  const Tokenizer tokenizer = require_tokenizer(model, description.decoder());
  if (image_token_id < static_cast<int64_t>(tokenizer.size())) return;
  throw Error(ErrorKind::data, "config.json says that {} is the image token, and tokenizer.json has the tokens 0 to {}",
              image_token_id, tokenizer.size() - 1)
      .at((model / "tokenizer.json").string())
      .advise("copy the tokenizer.json of this very model here: that of its language model lacks the image token");
}

} // namespace

Tokenizer require_tokenizer(const std::filesystem::path& decoder, const DecoderConfig& config) {
  const auto file = decoder / "tokenizer.json";
  std::error_code ignored;
  if (!std::filesystem::exists(file, ignored))
    throw Error(ErrorKind::data, "the decoder has no tokenizer.json")
        .at(decoder.string())
        .advise("copy the tokenizer.json of the decoder's model into this folder; older formats such as vocab.json and "
                "tokenizer.model are not read: save them with transformers, which writes a tokenizer.json");
  Tokenizer tokenizer = Tokenizer::from_file(file);
  tokenizer.check_vocabulary_size(config.vocab_size, decoder.string());
  return tokenizer;
}

void check_image_processor(const std::filesystem::path& vision, const VisionConfig& config) {
  try {
    const auto processor = find_image_processor(vision);
    const FramePreparation prepared(config.image_size, processor);
    if (processor || config.max_bytes > 0 || config.model_type.starts_with("dinov2")) return;
    log_warning(
        "{}: there is no preprocessor_config.json, so that images are resized to a square without keeping their "
        "aspect ratio and normalized with ImageNet's mean and standard deviation\n  copy the file from the folder "
        "that the model was downloaded as: it says how the images were prepared that it was trained on",
        vision.string());
  } catch (Error& error) {
    if (error.where().empty()) error.at(vision.string());
    throw;
  }
}

std::function<void(const ModelDescription&, int64_t)> whole_model_check(std::filesystem::path folder) {
  return [folder = std::move(folder)](const ModelDescription& model, int64_t image_token_id) {
    check_whole_model(folder, model, image_token_id);
  };
}

} // namespace fvlm::cli
