#include "model/weights/connector.h"

#include "base/error.h"
#include "base/text.h"
#include "model/weights/config_reader.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <array>
#include <cmath>

namespace fvlm {

ConnectorConfig read_connector_config(const nlohmann::json& config, const std::string& where) {
  ConfigReader reader(config, where);
  reader.refuse_unknown(std::array{"kind", "query_dim", "visual_scale", "attend"});
  std::string kind = reader.text("kind", std::nullopt);
  reader.refuse_unless(kind == "fvlm", "kind", "the only connector is fvlm");
  ConnectorConfig out;
  out.query_dim = reader.whole("query_dim", std::nullopt, 1, 1 << 20);
  out.visual_scale = reader.number("visual_scale", std::nullopt, 1e-12, 1e12);
  std::string attend = reader.text("attend", "deep");
  reader.refuse_unless(attend == "deep" || attend == "shallow", "attend", "it is deep or shallow");
  out.shallow = attend == "shallow";
  reader.finish("the connector is what `fvlm-engine import` writes into fvlm.json");
  return out;
}

std::string ConnectorConfig::select_mode(std::string_view word) {
  shallow = shallow || word == "shallow";
  if (word.empty() || word == "shallow") return "coarse_fine";
  for (const char* mode : {"coarse_fine", "refined", "coarse_only", "autoregressive"})
    if (word == mode) return mode;
  throw Error(ErrorKind::usage, fmt::format("there is no mode '{}'", word))
      .advise("coarse_fine, refined, coarse_only, autoregressive or shallow");
}

nlohmann::json config_json(const ConnectorConfig& config) {
  return {{"kind", "fvlm"},
          {"query_dim", config.query_dim},
          {"visual_scale", config.visual_scale},
          {"attend", config.shallow ? "shallow" : "deep"}};
}

WeightLayout layout_of(const ConnectorConfig& config, const VisionConfig& vision, const DecoderConfig& decoder) {
  int64_t query = config.query_dim, dino = vision.hidden_size, llm = decoder.hidden_size;
  WeightLayout out;
  // As torch.nn.Linear does it: weight and bias alike, by the number of inputs.
  auto linear = [&](const std::string& name, int64_t outputs, int64_t inputs, bool bias) {
    Initializer fill{Initializer::Kind::uniform, 1 / std::sqrt(static_cast<double>(inputs))};
    out.tensors.push_back({name + ".weight", {outputs, inputs}, fill});
    if (bias) out.tensors.push_back({name + ".bias", {outputs}, fill});
  };
  // With a small deviation every query would look alike, and fine would equal coarse for ever.
  for (const char* name : {"q_static", "q_init"})
    out.tensors.push_back({name, {1, query}, {Initializer::Kind::normal, 1}});
  linear("query_input_proj", dino, query, false); // a bias would drown the query
  linear("output_proj", dino, dino, true);
  linear("dino_to_llm", llm, dino, true);
  linear("llm_to_query", query, llm, true);
  return out;
}

} // namespace fvlm
