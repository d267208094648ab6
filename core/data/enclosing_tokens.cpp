#include "data/enclosing_tokens.h"

#include "base/json.h"

#include <algorithm>
#include <mutex>

namespace fvlm {
namespace {

using Json = nlohmann::json;

// The step itself, or one of a Sequence.
const Json* template_of(const Json& step) {
  if (!step.is_object()) return nullptr;
  if (step.value("type", "") == "TemplateProcessing") return &step;
  if (const auto steps = step.find("processors"); steps != step.end())
    for (const Json& each : *steps)
      if (const Json* found = template_of(each)) return found;
  return nullptr;
}

} // namespace

EnclosingTokens enclosing_tokens(const Tokenizer& tokenizer) {
  EnclosingTokens enclosing;
  if (tokenizer.folder().empty()) return enclosing; // it was not read from a file
  const Json file = read_json_object(tokenizer.folder() / "tokenizer.json", uint64_t{256} << 20);
  const auto step = file.find("post_processor");
  const Json* const found = step == file.end() ? nullptr : template_of(*step);
  if (!found) return enclosing;
  bool is_behind = false;
  for (const Json& part : found->value("single", Json::array())) {
    if (part.contains("Sequence")) is_behind = true;
    if (!part.contains("SpecialToken")) continue;
    const std::string name = part.at("SpecialToken").value("id", "");
    if (const auto id = tokenizer.added_id(name)) (is_behind ? enclosing.after : enclosing.before).push_back(*id);
  }
  return enclosing;
}

struct EmbeddingTokens::Enclosing {
  std::once_flag once;
  EnclosingTokens tokens;
};

EmbeddingTokens::EmbeddingTokens(const Tokenizer& tokenizer)
    : tokenizer_(tokenizer), enclosing_(std::make_shared<Enclosing>()) {}

EmbeddingTokens::Read EmbeddingTokens::of(std::string_view text, size_t most) const {
  std::call_once(enclosing_->once, [this] { enclosing_->tokens = enclosing_tokens(tokenizer_); });
  const auto& [before, after] = enclosing_->tokens;
  Read read{tokenizer_.encode(text, SpecialTokens::as_text)};
  const size_t around = before.size() + after.size(), room = most - std::min(most, around);
  read.removed = read.ids.size() - std::min(read.ids.size(), room);
  read.ids.resize(read.ids.size() - read.removed);
  read.ids.insert(read.ids.begin(), before.begin(), before.end());
  read.ids.insert(read.ids.end(), after.begin(), after.end());
  return read;
}

} // namespace fvlm
