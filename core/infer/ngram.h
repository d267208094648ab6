// What may follow a text: the tokens that followed when it last said what it says now.
#pragma once
#include <cstdint>
#include <span>
#include <vector>

namespace fvlm::infer {

// Up to `most` tokens that stand behind the newest earlier occurrence of the text's last four tokens, or of its last
// three or two. None where they do not occur. Placeholders of visual rows are not proposed.
std::vector<int64_t> propose_by_ngram(std::span<const int64_t> text, int64_t most);

} // namespace fvlm::infer
