#include "infer/ngram.h"

#include "recipe/visual_rows.h"

#include <algorithm>

namespace fvlm::infer {

std::vector<int64_t> propose_by_ngram(std::span<const int64_t> text, int64_t most) {
  for (size_t length = 4; length >= 2; --length) {
    if (text.size() <= length) continue;
    const auto last = text.last(length);
    for (size_t end = text.size() - 1; end >= length; --end) {
      if (!std::equal(last.begin(), last.end(), text.begin() + static_cast<std::ptrdiff_t>(end - length))) continue;
      const auto behind =
          text.subspan(end, std::min(text.size() - end, static_cast<size_t>(std::max<int64_t>(0, most))));
      return {behind.begin(), std::ranges::find(behind, visual_placeholder)};
    }
  }
  return {};
}

} // namespace fvlm::infer
