// OwnTemplate: the chat template that a Hugging Face folder brings, in Jinja, applied to conversations.
#pragma once
#include "data/tokenizer.h"
#include "jinja/template.h"

#include <filesystem>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace fvlm {

struct Turn {
  std::string role; // "system", "user" or "assistant"
  std::string text;
  int images = 0; // that stand before the text
};

// A conversation as text.
struct ChatText {
  std::string text;
  std::vector<size_t> literal; // where a special token is spelled in a turn, in bytes: it is no token
  std::vector<std::pair<size_t, size_t>> answers; // what the assistant says: begin and end in bytes
  std::vector<std::pair<size_t, size_t>> marks;   // of images and videos, in the order of those in the turns
};

// A special token of a tokenizer's folder by its name in tokenizer_config.json or special_tokens_map.json, such as
// "bos_token". Nothing where the folder is empty or names none.
std::optional<std::string> named_special_token(const std::filesystem::path& folder, const char* name);

class OwnTemplate {
 public:
  // Reads the template called `name` of the tokenizer's folder; the usual one is "default". Throws Error(data) where
  // the folder has none, or one that cannot be run. The tokenizer must outlive it. `has_marks`: <image> and <video> in
  // what a user says are images; they are written as the template writes images, or, where it only takes texts, as
  // <image>.
  OwnTemplate(const Tokenizer& tokenizer, const std::string& name, bool has_marks = false);

  // With `prompt`, it ends where the assistant's next answer begins. Throws Error(data) where the template refuses the
  // conversation, or where it does not show which parts of the text are answers. [any thread]
  ChatText render(std::span<const Turn> turns, bool prompt) const;

 private:
  ChatText render_plainly(std::span<const Turn> turns, bool prompt) const;
  std::vector<std::pair<size_t, size_t>> find_answers(std::span<const Turn> turns, const std::string& text) const;
  jinja::Value message(const Turn& turn) const;
  jinja::Value content_with_marks(const std::string& text) const;
  void find_image_token();
  void find_marks(std::span<const Turn> turns, ChatText& chat) const;
  std::string marked(const std::string& text) const;
  bool shows_content(bool parts) const;

  const Tokenizer& tokenizer_;
  std::string where_;
  jinja::Template template_;
  jinja::Variables special_tokens_;               // bos_token and the like
  bool takes_text_ = false, takes_parts_ = false; // forms of a turn's content: a string, or a list of images and texts
  std::string image_token_;                       // what the template writes for an image; empty: marks are plain text
  bool takes_image_parts_ = false;                // otherwise the token itself stands in a turn's text
};

} // namespace fvlm
