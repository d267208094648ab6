// The options of verbs that read images, videos and questions outside of shards: system turn, chat template,
// frames and image size.
#pragma once
#include "cli/options.h"
#include "data/samples/media_file.h"
#include "data/tokenizer.h"
#include "model/model.h"
#include "serve/prompt_writer.h"

#include <filesystem>
#include <optional>
#include <string>

namespace fvlm::cli {

inline constexpr const char* media_option_names[] = {"system",       "chat-template",    "frames",
                                                     "image-frames", "image-size",       "min-pixels",
                                                     "max-pixels",   "video-min-pixels", "video-max-pixels"};

// Adds --system, --chat-template, --image-frames and --image-size.
Options& with_image_options(Options& options);
// Those, --frames, and the options of processor_options.h, for verbs that read videos.
Options& with_media_options(Options& options);

struct InputSettings {
  MediaOptions media;                       // without a video decoder
  std::string system;                       // the system turn
  std::optional<std::string> chat_template; // as in plan::Mix
  plan::QuestionForm questions;             // for an encoder of bytes
  std::optional<plan::BoxForm> boxes;       // of samples; nothing: it is not known
};

// What the options leave open comes from the run that `model` is a checkpoint of, or else from the model's folders and
// the defaults.
InputSettings input_settings(const ParsedOptions& parsed, const std::filesystem::path& model,
                             const model::ModelConfig& config, const Tokenizer& tokenizer);

// The frames of a video file or a folder of images. Throws Error(data).
serve::PromptFrames read_video(const std::string& file, MediaOptions options, Registry& registry);

// The bytes of an image file that can be decoded. Throws Error(data) at the file; `advice`: for one that is no image.
std::string read_image(const std::string& file, const std::string& advice);

} // namespace fvlm::cli
