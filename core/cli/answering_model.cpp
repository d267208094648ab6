#include "cli/answering_model.h"

#include "base/error.h"
#include "cli/draft_options.h"
#include "cli/execution_options.h"
#include "cli/named_model.h"
#include "cli/plugin_options.h"
#include "model/weights/model_file.h"
#include "model/weights/visual_rows.h"

namespace fvlm::cli {
namespace {

Tokenizer tokenizer_in(const std::filesystem::path& model, const char* verb) {
  const auto file = decoder_folder(model) / "tokenizer.json";
  if (!std::filesystem::exists(file))
    throw Error(ErrorKind::data, "{} needs a tokenizer, and there is no decoder/tokenizer.json", verb)
        .at(model.string())
        .advise("copy tokenizer.json of the decoder's Hugging Face folder to {}", file.string());
  return Tokenizer::from_file(file);
}

MediaOptions with_decoder(MediaOptions media, const std::optional<VideoDecoder>& videos) {
  media.video = videos ? &*videos : nullptr;
  return media;
}

} // namespace

AnsweringModel::AnsweringModel(const ParsedOptions& parsed, const char* verb)
    : AnsweringModel(parsed, verb, model_named(*parsed.value("MODEL")), answering_execution_of(parsed)) {}

AnsweringModel::AnsweringModel(const ParsedOptions& parsed, const char* verb, const std::filesystem::path& model,
                               const model::Execution& execution)
    : registry(open_registry(parsed)), folder(model), execution(execution), tokenizer(tokenizer_in(folder, verb)),
      generator(folder, execution, *registry), input(input_settings(parsed, folder, generator.config(), tokenizer)),
      videos(choose_video_decoder(*registry, {})),
      rows(visual_rows(*generator.config().connector, generator.config().vision, input.media.image_size)),
      prompts(tokenizer, rows,
              {.preparation = input.media.preparation(),
               .image_frames = input.media.image_frames,
               .system = input.system,
               .chat_template = input.chat_template,
               .patch_size = generator.config().vision.patch_size,
               .pinned = generator.is_on_gpu(),
               .videos = with_decoder(input.media, videos),
               .has_date = true}) {
  tokenizer.check_vocabulary_size(generator.config().decoder.vocab_size, folder.string());
  if (rows.max_bytes > 0)
    throw Error(ErrorKind::data, "{} answers questions about pictures, and this model's encoder reads text as bytes",
                verb)
        .at(folder.string())
        .advise("ask it with `generate --context TEXT`");
  use_draft_model(parsed, folder, generator);
}

} // namespace fvlm::cli
