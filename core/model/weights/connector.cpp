#include "model/weights/connector.h"

#include "base/config_reader.h"
#include "base/error.h"
#include "base/text.h"
#include "model/connector/settings.h"
#include "model/weights/layout.h"

#include <nlohmann/json.hpp>

namespace fvlm {

ConnectorConfig read_connector_config(const nlohmann::json& config, const std::string& where) {
  ConfigReader reader(config, where);
  const std::string kind = reader.text("kind", std::nullopt);
  ConnectorConfig found;
  std::vector<std::string> kinds;
  for (const connector::Settings& each : connector::all_settings()) {
    ConnectorConfig made(each.make());
    kinds.emplace_back(made->kind());
    if (kinds.back() == kind) found = std::move(made);
  }
  reader.refuse_unless(static_cast<bool>(found), "kind", "the connectors are " + join(kinds, ", "));
  if (!found) found = plan::default_connector(); // for what else is wrong
  found->read_config(reader);
  reader.finish("the connector is what `fvlm-engine import` writes into fvlm.json");
  return found;
}

nlohmann::json config_json(const ConnectorConfig& config) {
  nlohmann::json json = config->config_json();
  json["kind"] = config->kind();
  return json;
}

WeightLayout layout_of(const ConnectorConfig& config, const VisionConfig& vision,
                       const std::vector<DecoderConfig>& decoders) {
  WeightLayout layout = config->layout(vision.output_width(), decoders.front().hidden_size);
  if (decoders.size() > 1 && !config->goes_with_several_decoders())
    throw Error(ErrorKind::data, "the connector {} goes with one decoder, and there are {}", config->kind(),
                decoders.size())
        .advise("several decoders read the latents of fvlm.byte_latents");
  for (size_t i = 1; i < decoders.size(); ++i)
    config->append_decoder(layout, plan::decoder_name(i), vision.output_width(), decoders[i].hidden_size);
  return layout;
}

} // namespace fvlm
