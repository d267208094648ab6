// OwnTemplate: the chat template that a Hugging Face folder brings, in Jinja, applied to conversations.
#pragma once
#include "data/thoughts.h"
#include "data/tokenizer.h"
#include "data/tool_calls.h"
#include "jinja/template.h"

#include <nlohmann/json_fwd.hpp>

#include <ctime>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace fvlm {

// Of an answer that uses a tool: text, code between the ToolTokens for it, or what the code printed.
struct TurnPart {
  enum class Kind { text, code, output };
  Kind kind = Kind::text;
  std::string text;
};

struct Turn {
  std::string role;            // "system", "user", "assistant", or "tool" for what a tool returned
  std::string text;            // of a user with marks of images and videos; marks_as_words() has them as words
  int images = 0;              // that stand before the text
  std::vector<TurnPart> parts; // of an answer that uses a tool: all of the text
  // Further keys of the message, which the template reads: "tool_calls", "name". They replace what is above.
  std::shared_ptr<const nlohmann::ordered_json> fields;
  // What stands in place of a user's <video>, with <image> for each frame; empty: <video> is the rows of all frames.
  std::string video_text = {};
  std::string thoughts = {}; // of an answer: what stood before its text, which a template reads as "reasoning_content"
  bool is_learnt = true;     // of an answer; otherwise it stands as context
  // Special tokens that the text may spell: there they are tokens. What spells another is text.
  std::span<const std::string_view> tokens = {};
};
std::string text_with_video(const Turn& turn);

// What was read without the order of its keys, as templates print it: in that of OpenAI's schema and of transformers'
// get_json_schema(), others alphabetically behind.
nlohmann::ordered_json in_usual_order(const nlohmann::json& value);

// What a template reads besides a conversation. Null: none.
struct TemplateValues {
  const nlohmann::ordered_json* tools = nullptr; // that the assistant may call
  const nlohmann::json* variables = nullptr; // an object, of which each key is a variable; texts spell no special token
  std::optional<std::tm> now = {};           // what strftime_now formats; nothing: the same date every day
};

// What the assistant says in a conversation's text, in bytes.
struct ChatAnswer {
  size_t begin = 0, end = 0;
  bool is_learnt = true;
};

// A conversation as text.
struct ChatText {
  std::string text;
  std::vector<size_t> literal; // where a special token is spelled in a turn, in bytes: it is no token
  std::vector<ChatAnswer> answers;
  std::vector<std::pair<size_t, size_t>> marks; // of images and videos, in the order of those in the turns
};

// A special token of a tokenizer's folder by its name in tokenizer_config.json or special_tokens_map.json, such as
// "bos_token". Nothing where the folder is empty or names none.
std::optional<std::string> named_special_token(const std::filesystem::path& folder, const char* name);

// The text of a template of the tokenizer's folder. Nothing where it has none of that name.
std::optional<std::string> chat_template_text(const std::filesystem::path& folder, const std::string& name);
// SHA-256 of all that conversations are written with by that template: its text, that of the template for conversations
// with tools, and the special tokens that both may name.
std::string chat_template_hash(const std::filesystem::path& folder, const std::string& name);

// The name of a folder's template for conversations with tools, beside one called "default", as in transformers.
inline constexpr const char* tool_template = "tool_use";

class OwnTemplate {
 public:
  // Whether the folder of a tokenizer has a template of that name. Throws Error(data) for files that are damaged.
  static bool is_in(const std::filesystem::path& folder, const std::string& name);

  // Reads the template called `name` of the tokenizer's folder; the usual one is "default". Throws Error(data) where
  // the folder has none, or one that cannot be run. The tokenizer must outlive it. `has_marks`: <image> and <video> in
  // what a user says are images; they are written as the template writes images, or, where it only takes texts, as
  // <image>.
  OwnTemplate(const Tokenizer& tokenizer, const std::string& name, bool has_marks = false);

  // With `prompt`, it ends where the assistant's next answer begins. Throws Error(data) where the template refuses the
  // conversation, or where it does not show which parts of the text are answers; those from which nothing is learnt, as
  // all of a prompt, are then left out, and so are later ones of a long prompt. [any thread]
  ChatText render(std::span<const Turn> turns, bool prompt, const TemplateValues& values = {}) const;
  // The form in which the template writes calls of tools; null: none, or one that is not known.
  const ToolCallForm* tool_call_form() const { return tool_call_form_; }
  const ThoughtTags* thought_tags() const { return thought_tags_; } // null: none that are known
  // Nothing: the template has none that is known.
  const std::optional<ThinkingSwitch>& thinking_switch() const { return thinking_switch_; }
  // What the template writes for an image among the parts of a turn; nothing: it leaves images out.
  std::optional<std::string> image_token() const;
  // Whether it writes the content of a turn that is a list of parts.
  bool takes_parts() const { return takes_parts_; }

 private:
  ChatText render_plainly(std::span<const Turn> turns, bool prompt, const TemplateValues& values = {}) const;
  void begin_behind_prompts(std::span<const Turn> turns, bool prompt, const TemplateValues& values,
                            ChatText& chat) const;
  void mark_unlearnt(std::span<const Turn> turns, const TemplateValues& values, std::vector<ChatAnswer>& answers) const;
  std::vector<ChatAnswer> find_answers(std::span<const Turn> turns, bool prompt, const std::string& text,
                                       const TemplateValues& values) const;
  std::optional<ChatAnswer> find_answer(std::span<const Turn> turns, const std::string& text,
                                        const TemplateValues& values) const;
  jinja::Value message(const Turn& turn) const;
  jinja::Value marked_value(const nlohmann::ordered_json& value) const;
  std::string marked_text(const Turn& turn) const;
  jinja::Value content_with_marks(const Turn& turn) const;
  void find_image_token();
  void find_video_token();
  void find_marks(std::span<const Turn> turns, ChatText& chat) const;
  std::string marked(const std::string& text, std::span<const std::string_view> tokens = {}) const;
  bool shows_content(bool parts) const;
  static nlohmann::ordered_json probe_tools();
  void find_tool_calls();
  void find_thinking_switch();

  const Tokenizer& tokenizer_;
  std::string where_;
  jinja::Template template_;
  jinja::Variables special_tokens_;               // bos_token and the like
  bool takes_text_ = false, takes_parts_ = false; // forms of a turn's content: a string, or a list of images and texts
  bool writes_tool_calls_ = true;
  const ToolCallForm* tool_call_form_ = nullptr;
  const ThoughtTags* thought_tags_ = nullptr;
  std::optional<ThinkingSwitch> thinking_switch_;
  std::string image_token_;        // what the template writes for an image; empty: marks are plain text
  std::string video_token_;        // what it writes for a video; empty: videos are written as images
  bool takes_image_parts_ = false; // otherwise the token itself stands in a turn's text
};

} // namespace fvlm
