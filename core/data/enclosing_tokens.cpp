#include "data/enclosing_tokens.h"

#include "base/json.h"

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

} // namespace fvlm
