// PromptWriter: what a model reads for a conversation: tokens with places for visual rows, and frames. `serve`, `chat`
// and `generate` write their prompts with it.
#pragma once
#include "data/chat.h"
#include "data/enclosing_tokens.h"
#include "data/media/frame_preparation.h"
#include "data/samples/media_file.h"
#include "grammar/token_constraint.h"
#include "model/pack.h"
#include "serve/answer_json.h"

namespace fvlm::serve {

struct PromptSettings {
  FramePreparation preparation;
  int64_t image_frames = 1; // how often a request's only image is repeated
  std::string system;       // the system turn of requests that have none
  std::optional<std::string> chat_template;
  int64_t patch_size = 1; // of the encoder, for attention_of()
  bool pinned = false;    // frames in memory that a GPU copies from by itself
  // Of videos that are one file, all frames of which have at most so many pixels together; nothing: they are refused.
  std::optional<MediaOptions> videos = {};
  int64_t most_pixels = RequestLimits().most_pixels;
  bool has_date = false; // chat templates get the local time; otherwise the same date every day
};

struct WrittenPrompt {
  model::Sample sample; // with one text
  // Of each frame, what it was made of, as infer::Prompt::visual_keys has it. Equal keys are equal frames for the same
  // PromptWriter.
  std::vector<std::string> frame_keys;
  const ToolCallForm* tool_calls = nullptr;      // of a request with tools: how its answer calls them
  std::optional<TokenId> call_begin;             // the token that begins a call, where the answer is one or has a form
  std::shared_ptr<const grammar::Grammar> calls; // what may follow it (call_grammar.h)
  Thinking thinking;                             // of a chat
  // Of a prompt that opens its answer.
  std::string echo;
  TokenId first_token = 0;
};

// The decoded frames of a file. `is_one_image`: as PromptFrames has it.
PromptFrames prompt_frames(const MediaFile& media, const FramePreparation& preparation, bool is_one_image);

class PromptWriter {
 public:
  // The tokenizer must outlive it.
  PromptWriter(const Tokenizer& tokenizer, const plan::VisualRows& visual_rows, PromptSettings settings);

  // What writes conversations. Throws Error(data) where the model has none: no template, or tokens that it needs.
  const ChatTemplate& chat() const;
  // Throws Error for images that cannot be decoded, conversations that the template refuses, and, where there is none,
  // all of them. [any thread]
  WrittenPrompt write(const ChatRequest& request) const;
  // By which chats without tools turn thinking on and off; nothing: the model's template has none.
  std::optional<ThinkingSwitch> thinking_switch() const { return chat_ ? chat_->thinking_switch() : std::nullopt; }
  const std::vector<std::string>& special() const { return special_; } // special_texts() of the tokenizer
  // What stands before a text of a given form.
  grammar::Preface preface_of(const Thinking& thinking) const;
  // Throws Error(usage) at `field` for tokens that the model's tokenizer does not have. [any thread]
  std::string text_of(std::span<const TokenId> tokens, const char* field) const;
  // The frames of a prompt with their copies, and the attention to each. `maps`: [frames, layers, heads, tokens of a
  // frame].
  FrameAttention attention_of(const model::Sample& sample, const at::Tensor& maps) const;

 private:
  // Frames of a request as they are decoded, one after the other.
  struct Decoded {
    PromptFrames out;
    std::vector<float> pixels;
    std::vector<std::string>& keys;
  };
  PromptFrames decode(const ChatRequest& request, std::vector<std::string>& keys) const;
  void decode_image(const std::string& file, int64_t images, Decoded& to) const;
  void decode_video(const std::string& file, const RequestVideo& video, Decoded& to) const;
  void decode_frames(std::span<const std::string> files, double per_second, Decoded& to) const;
  at::Tensor in_memory(const std::vector<float>& pixels) const; // as frames
  void require_known(std::span<const TokenId> tokens, const char* field) const;
  std::vector<TokenId> prompt(const ChatRequest& request, std::span<const Turn> turns, WrittenPrompt& written) const;
  TokenId call_begin(const ToolCallForm& form) const;
  std::vector<TokenId> continued(const ChatRequest& request, WrittenPrompt& written) const;

  const Tokenizer& tokenizer_;
  plan::VisualRows visual_rows_;
  PromptSettings settings_;
  std::optional<ChatTemplate> chat_;
  std::optional<Error> no_chat_; // why there is none
  EmbeddingTokens embedding_tokens_;
  const std::vector<std::string> special_;
  const std::optional<ChatTemplate> chat_with_tools_; // where `chat_` has no place for them
};

} // namespace fvlm::serve
