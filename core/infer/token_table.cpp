#include "infer/token_table.h"

namespace fvlm::infer {

std::shared_ptr<const grammar::TokenTable> token_table_of(const Tokenizer& tokenizer) {
  return std::make_shared<const grammar::TokenTable>(static_cast<int64_t>(tokenizer.size()), [&](int64_t id) {
    const auto token = static_cast<TokenId>(id);
    const bool is_text = tokenizer.has(token) && !tokenizer.is_special(token);
    return is_text ? std::string_view(tokenizer.bytes_of(token)) : std::string_view();
  });
}

} // namespace fvlm::infer
