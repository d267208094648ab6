// Turns of a conversation become tokens and a mask of the answers, in ChatML (as SmolLM2 has it) or by the template
// that the tokenizer's folder brings.
#pragma once
#include "data/own_template.h"
#include "data/tool_tokens.h"
#include "recipe/visual_rows.h"

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace fvlm {

struct ChatTokens {
  std::vector<TokenId> ids;
  std::vector<uint8_t> answer_mask; // 1 for every token of an answer that is learnt, with the tokens that end it
};

inline constexpr std::string_view default_system_prompt = "You are a helpful AI assistant.";

// Lets frames that no turn mentions open the first turn of the user: "<image>\n". `marks`: <image> for each image, or
// <video>; `behind`: what stands behind all of them.
void mention_frames(std::vector<Turn>& turns, std::string_view marks, std::string_view behind = "\n");
// Whether a turn of the user has a <video>.
bool mentions_video(std::span<const Turn> turns);
// Lets this text stand for the <video> of the turns. Throws Error(data) where they have several, or, unless they may,
// images besides.
void write_video(std::vector<Turn>& turns, const std::string& text, bool may_have_images = false);

// Writes the system prompt (none where it is empty), then the turns. Text of a turn never becomes a special token, so
// users cannot inject markup.
class ChatTemplate {
 public:
  // Without the name of a template in the tokenizer's folder it is ChatML. Beside one called "default", one called
  // "tool_use" writes conversations with tools, as in transformers. `visual_rows`: where they are in place,
  // <image> and <video> in a user's turn become their ids in visual_marks.h. Throws Error(data) when the tokenizer
  // lacks <|im_start|> or <|im_end|> of ChatML, or when there is no such template.
  explicit ChatTemplate(const Tokenizer& tokenizer, const plan::VisualRows& visual_rows = {},
                        const std::optional<std::string>& name = {});

  // Answers that are not learnt, and outputs of an answer's parts, are no labels. Throws Error(data) for parts that the
  // tokenizer has no tokens for, and for tools that ChatML or the template has no place for. `tools`: what the
  // assistant may call, which a template in the tokenizer's folder writes; null: none.
  ChatTokens encode(std::span<const Turn> turns, std::string_view system = default_system_prompt,
                    const nlohmann::ordered_json* tools = nullptr) const;

  // The same with a generation prompt: it ends where the next answer begins, with "<|im_start|>assistant\n" in ChatML.
  // `values`: ChatML reads none, and has no place for tools.
  std::vector<TokenId> prompt(std::span<const Turn> turns, std::string_view system = default_system_prompt,
                              const TemplateValues& values = {}) const;

  // Whether it writes a message's content part by part, where there are several; ChatML does not.
  bool takes_parts() const;
  // See OwnTemplate; of ChatML null.
  const ToolCallForm* tool_call_form() const;
  // The same; of ChatML those that the tokenizer has tokens for, and no switch.
  const ThoughtTags* thought_tags() const;
  std::optional<ThinkingSwitch> thinking_switch() const;
  // How an answer to these tokens of prompt() may think.
  Thinking thinking_behind(std::span<const TokenId> prompt) const;

 private:
  void append_turn(const Turn& turn, ChatTokens& out) const;
  using Spelled = std::span<const std::string_view>; // see Turn::tokens
  void append_text(std::string_view text, bool answer, ChatTokens& out, Spelled tokens = {}) const;
  void append_user_text(std::string_view text, ChatTokens& out, Spelled tokens) const;
  void append_token(TokenId id, bool answer, ChatTokens& out) const;

  ChatTokens encode_own(std::span<const Turn> turns, std::string_view system, bool prompt,
                        const TemplateValues& values) const;
  void append_parts(const Turn& turn, bool is_learnt, ChatTokens& out) const;
  void unlabel_outputs(std::span<const Turn> turns, ChatTokens& out) const;
  void require_form(std::span<const Turn> turns) const;

  const Tokenizer& tokenizer_;
  std::shared_ptr<const OwnTemplate> own_;       // null: ChatML
  std::shared_ptr<const OwnTemplate> own_tools_; // with tools; null: `own_`
  TokenId start_ = -1, end_ = -1;                // of ChatML
  std::optional<ToolTokens> tool_tokens_;
  bool has_marks_;
};

// "default" where the tokenizer's folder has a template of that name which writes a conversation otherwise than ChatML
// with this system turn, or, where that is the usual one, has none by itself, or which has a place for images, so that
// its model was trained with that one. Nothing where there is none; a template that cannot be run is warned of.
std::optional<std::string> own_chat_template(const Tokenizer& tokenizer,
                                             const std::string& system = std::string(default_system_prompt));

// The template of the tokenizer's folder, where it writes a conversation as ChatML does, and calls of tools besides.
std::optional<ChatTemplate> chatml_with_tools(const Tokenizer& tokenizer, const plan::VisualRows& visual_rows);

} // namespace fvlm
