#include "model/connector/foveated/settings.h"

#include "base/config_reader.h"
#include "base/error.h"
#include "model/connector/settings.h"
#include "model/weights/layout.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <array>
#include <cmath>

namespace fvlm::connector {

using namespace recipe;

Settings foveated_settings() {
  return recipe::alternative<plan::ConnectorSettings>(
      record<Foveated>("Foveated", "foveated",
                       "Turns a frame into one visual token, and a hidden state into the next query.")
          .usage("fvlm.foveated { query_dim = 384 }")
          .field("query_dim", &Foveated::query_dim, integer(at_least(1)), "Features of a query.")
          .field("visual_scale", &Foveated::visual_scale, number(above(0)), "Factor on every visual token.")
          .field("attend", &Foveated::attend,
                 choice<Attend>({{"deep", Attend::deep, "through every layer of the tower"},
                                 {"shallow", Attend::shallow, "one cross-attention on the last layer (an ablation)"}}),
                 "How a query attends to a frame.")
          .done());
}

std::vector<plan::ConnectorMode> Foveated::modes() const {
  return {
      {"coarse_fine", "two passes, as the published models were trained",
       "each frame is encoded with the static query, then with a query computed from those coarse tokens"},
      {"refined", "a third pass, with queries computed from the fine visual tokens",
       "the query is computed once more, from the fine tokens, as in inference; the two earlier passes have no "
       "gradient"},
      {"coarse_only", "the static query alone", ""},
      {"autoregressive", "frame by frame, as in inference", "", false},
  };
}

std::string Foveated::select_mode(std::string_view word) {
  if (word != "shallow") return ConnectorSettings::select_mode(word);
  attend = Attend::shallow;
  return "coarse_fine";
}

nlohmann::json Foveated::config_json() const {
  return {{"query_dim", query_dim}, {"visual_scale", visual_scale}, {"attend", shallow() ? "shallow" : "deep"}};
}

void Foveated::read_config(ConfigReader& reader) {
  reader.refuse_unknown(std::array{"kind", "query_dim", "visual_scale", "attend"});
  query_dim = reader.whole("query_dim", std::nullopt, 1, 1 << 20);
  visual_scale = reader.number("visual_scale", std::nullopt, 1e-12, 1e12);
  const std::string word = reader.text("attend", "deep");
  reader.refuse_unless(word == "deep" || word == "shallow", "attend", "it is deep or shallow");
  attend = word == "shallow" ? Attend::shallow : Attend::deep;
}

void Foveated::adopt_shapes(const ShapeOf& shape_of) {
  const auto shape = shape_of("q_static");
  if (shape.size() != 2 || shape[1] < 1)
    throw Error(ErrorKind::data, "q_static has the shape [{}], and must have [1, query_dim]", fmt::join(shape, ", "));
  query_dim = shape[1];
}

WeightLayout Foveated::layout(int64_t encoder_width, int64_t decoder_width) const {
  WeightLayout out;
  // As torch.nn.Linear does it: weight and bias alike, by the number of inputs.
  const auto linear = [&](const std::string& name, int64_t outputs, int64_t inputs, bool bias) {
    const Initializer fill{Initializer::Kind::uniform, 1 / std::sqrt(static_cast<double>(inputs))};
    out.tensors.push_back({name + ".weight", {outputs, inputs}, fill});
    if (bias) out.tensors.push_back({name + ".bias", {outputs}, fill});
  };
  // With a small deviation every query would look alike, and fine would equal coarse for ever.
  for (const char* name : {"q_static", "q_init"})
    out.tensors.push_back({name, {1, query_dim}, {Initializer::Kind::normal, 1}});
  linear("query_input_proj", encoder_width, query_dim, false); // a bias would drown the query
  linear("output_proj", encoder_width, encoder_width, true);
  linear("dino_to_llm", decoder_width, encoder_width, true);
  linear("llm_to_query", query_dim, decoder_width, true);
  return out;
}

} // namespace fvlm::connector
