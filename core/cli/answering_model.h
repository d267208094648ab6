// What `serve`, `chat` and `generate --data` answer with: a model about pictures, its tokenizer, and the writer of its
// prompts.
#pragma once
#include "cli/media_options.h"
#include "cli/options.h"
#include "data/media/video.h"
#include "data/tokenizer.h"
#include "infer/generator.h"
#include "plugin/registry.h"
#include "serve/prompt_writer.h"

#include <filesystem>
#include <memory>
#include <optional>

namespace fvlm::cli {

struct AnsweringModel {
  // Of the options MODEL, with_answering_options(), with_media_options() and with_draft_options(). `verb` is for
  // messages. Throws Error(data) for a model without a tokenizer, or whose encoder reads text.
  AnsweringModel(const ParsedOptions& parsed, const char* verb);
  // The same for a model directory and an execution that other options say.
  AnsweringModel(const ParsedOptions& parsed, const char* verb, const std::filesystem::path& model,
                 const model::Execution& execution);
  AnsweringModel(const AnsweringModel&) = delete; // the parts refer to each other
  AnsweringModel& operator=(const AnsweringModel&) = delete;

  std::unique_ptr<Registry> registry;
  std::filesystem::path folder;
  model::Execution execution;
  Tokenizer tokenizer;
  infer::Generator generator;
  InputSettings input;
  std::optional<VideoDecoder> videos; // null: no plugin decodes them
  plan::VisualRows rows;
  serve::PromptWriter prompts;
};

} // namespace fvlm::cli
