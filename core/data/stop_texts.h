// StopTexts: the texts at which an answer ends, found in text that comes in pieces.
#pragma once
#include <string>
#include <string_view>
#include <vector>

namespace fvlm {

// How many bytes at the end of the text may be the beginning of `word`, which is longer.
size_t begun_at_end(std::string_view text, std::string_view word);

class StopTexts {
 public:
  // Throws Error(usage) for an empty one.
  explicit StopTexts(std::vector<std::string> texts);

  // Returns what can be shown so far, which is nothing from the first stop text on. Without `may_stop` a stop text that
  // ends in this piece is text.
  std::string add(std::string_view piece, bool may_stop = true);
  // Returns what was held back because it could have become a stop text. Call it last.
  std::string finish();
  bool found() const { return found_; }
  const std::string& found_text() const { return found_text_; } // the first of those that begin there

 private:
  std::vector<std::string> texts_;
  std::string held_, found_text_;
  bool found_ = false;
};

} // namespace fvlm
