#include "data/stop_texts.h"

#include "base/error.h"

#include <algorithm>
#include <utility>

namespace fvlm {

size_t begun_at_end(std::string_view text, std::string_view word) {
  for (size_t length = std::min(text.size(), word.size() - 1); length > 0; --length)
    if (text.ends_with(word.substr(0, length))) return length;
  return 0;
}

StopTexts::StopTexts(std::vector<std::string> texts) : texts_(std::move(texts)) {
  if (std::ranges::find(texts_, "") != texts_.end())
    throw Error(ErrorKind::usage, "a stop text is empty: nothing would be generated");
}

std::string StopTexts::add(std::string_view piece, bool may_stop) {
  if (found_) return "";
  held_ += piece;
  size_t end = held_.size();
  if (may_stop)
    for (const std::string& text : texts_)
      if (const size_t at = held_.find(text); at < end) end = at, found_text_ = text;
  found_ = end < held_.size();
  if (found_) return std::exchange(held_, "").substr(0, end);
  size_t held = 0;
  for (const std::string& text : texts_) held = std::max(held, begun_at_end(held_, text));
  std::string shown = held_.substr(0, end - held);
  held_.erase(0, shown.size());
  return shown;
}

std::string StopTexts::finish() {
  return std::exchange(held_, "");
}

} // namespace fvlm
