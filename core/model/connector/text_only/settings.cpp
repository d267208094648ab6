#include "model/connector/text_only/settings.h"

#include "base/config_reader.h"
#include "model/connector/settings.h"
#include "model/weights/layout.h"

#include <nlohmann/json.hpp>

#include <array>

namespace fvlm::connector {

using namespace recipe;

Settings text_only_settings() {
  return recipe::alternative<plan::ConnectorSettings>(
      record<TextOnly>("TextOnly", "text_only",
                       "Of a language model without an encoder, as `import --model` makes it of the folder of a Llama "
                       "or a Qwen3: it reads text alone, and samples with pictures are refused.")
          .usage("fvlm.text_only { }")
          .done());
}

std::vector<plan::ConnectorMode> TextOnly::modes() const {
  return {{"text", "text alone", "text alone"}};
}

nlohmann::json TextOnly::config_json() const {
  return nlohmann::json::object();
}

void TextOnly::read_config(ConfigReader& reader) {
  reader.refuse_unknown(std::array{"kind"});
}

WeightLayout TextOnly::layout(int64_t, int64_t) const {
  return {};
}

} // namespace fvlm::connector
