#include "cli/media_options.h"

#include "base/error.h"
#include "base/file.h"
#include "base/log.h"
#include "cli/processor_options.h"
#include "cli/recipe_options.h"
#include "data/boxes.h"
#include "data/chat.h"
#include "data/media/decode_image.h"
#include "data/media/video.h"
#include "model/weights/model_file.h"

#include <algorithm>

namespace fvlm::cli {
namespace {

namespace fs = std::filesystem;

// For a checkpoint of a run, takes the settings of its stage from the run's plan. Returns whether it did.
bool read_training_settings(const fs::path& model, InputSettings& out) {
  try {
    const auto trained = plan_of_checkpoint(model);
    if (!trained) return false;
    const plan::Stage& stage = stage_named(trained->plan, trained->stage);
    out.media.image_size = trained->plan.model.image_size;
    out.media.max_frames = stage.data.max_frames;
    if (out.media.processor && out.media.processor->has_cells()) out.media.max_cells = stage.data.max_frames;
    out.media.image_frames = stage.data.replicate_image_frames;
    out.system = stage.data.system;
    out.chat_template = stage.data.chat_template;
    out.questions = stage.data.questions.value_or(plan::QuestionForm());
    if (stage.data.boxes) out.boxes = stage.data.boxes;
    return true;
  } catch (const Error& error) {
    log_warning("using default frames and image size, the settings of the training are unknown: {}", error.text());
    return false;
  }
}

// What repeats a single image is not ignored for others.
void refuse_frames_of(const ParsedOptions& parsed, const MediaOptions& media) {
  const size_t images = parsed.values("image").size();
  if (media.image_frames == 1) return;
  if (images > 1)
    throw Error(ErrorKind::usage, "--image-frames repeats a prompt's only image, and there are {}", images)
        .advise("leave it out; each of several images is a frame");
  if (media.preparation().makes_tiles())
    throw Error(ErrorKind::usage,
                "--image-frames repeats an image, and this model's image processor cuts it into tiles")
        .advise("leave it out");
}

constexpr const char* chatml = "chatml"; // of --chat-template

} // namespace

Options& with_image_options(Options& options) {
  return options
      .value("system", "TEXT",
             "the system turn; empty: none; default: the training's, else You are a helpful AI assistant. in ChatML")
      .value("chat-template", "NAME",
             "chatml, or a chat template of the decoder's folder, usually default; default: the training's, else the "
             "folder's own")
      .value("image-frames", "N", "repeat a prompt's only image to N frames; default: the training's, else 1")
      .value("image-size", "N",
             "pixels per side; default: the training's, else the image processor's, else at most 224 (LLaVA, "
             "SmolVLM: the tower's own)");
}

Options& with_media_options(Options& options) {
  return with_processor_options(with_image_options(options))
      .value("frames", "N", "sample at most N frames of a video, evenly; default: the training's, else 64");
}

InputSettings input_settings(const ParsedOptions& parsed, const fs::path& model, const model::ModelConfig& config,
                             const Tokenizer& tokenizer) {
  InputSettings out{{}, std::string(default_system_prompt), {}, {}};
  if (const int64_t own_size = config.vision.image_size; own_size > 0) // an encoder of bytes has none
    out.media.image_size =
        config.connector->known_rows_per_frame() ? std::min(own_size, out.media.image_size) : own_size;
  if (const auto encoder = encoder_folder(model))
    out.media.processor = find_image_processor(*encoder, processor_overrides_of(parsed));
  if (const auto size = out.media.processor ? frame_size(*out.media.processor) : std::nullopt)
    out.media.image_size = size->height;
  out.boxes = box_form_of(tokenizer.folder());
  const bool has_settings = read_training_settings(model, out);
  out.media.image_size = parsed.integer_or("image-size", out.media.image_size, 1);
  out.media.max_frames = parsed.integer_or("frames", out.media.max_frames, 1);
  out.media.image_frames = parsed.integer_or("image-frames", out.media.image_frames, 1);
  if (const auto name = parsed.value("chat-template"))
    out.chat_template = *name == chatml ? std::nullopt : name;
  else if (!has_settings && config.vision.max_bytes == 0)
    out.chat_template = own_chat_template(tokenizer);
  if (out.chat_template && !has_settings) out.system.clear(); // the template says itself what stands there
  out.system = parsed.value_or("system", out.system);
  if (parsed.value("image-frames")) refuse_frames_of(parsed, out.media);
  return out;
}

serve::PromptFrames read_video(const std::string& file, MediaOptions options, Registry& registry) {
  try {
    options.preparation().require_videos();
  } catch (const Error& error) {
    throw Error(error.kind(), error.what()).at(file).advise(error.advice());
  }
  const auto decoder = choose_video_decoder(registry, {});
  options.video = decoder ? &*decoder : nullptr;
  return serve::prompt_frames(MediaFile(file, options), options.preparation(), false);
}

std::string read_image(const std::string& file, const std::string& advice) {
  std::error_code ignored;
  if (fs::is_directory(file, ignored)) throw Error(ErrorKind::data, "it is a folder").at(file).advise(advice);
  std::string bytes = read_file(file, max_image_file_bytes);
  try {
    (void)decode_image(std::as_bytes(std::span(bytes)));
  } catch (const Error& error) {
    const bool is_image = looks_like_image(std::as_bytes(std::span(bytes)));
    throw Error(error.kind(), error.what())
        .at(file)
        .advise(is_image || !error.advice().empty() ? error.advice() : advice);
  }
  return bytes;
}

} // namespace fvlm::cli
