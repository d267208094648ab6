#include "model/connector/ovis2/settings.h"

#include "model/connector/settings.h"
#include "model/weights/layout.h"

namespace fvlm::connector {

Settings ovis2_settings() {
  return recipe::alternative<plan::ConnectorSettings>(
      recipe::record<Ovis2>("Ovis2", "ovis2",
                            "Squares of patches side by side in one row each, a linear, a LayerNorm and a softmax over "
                            "a visual vocabulary, by which its embeddings are averaged; with learned rows around an "
                            "image and between its tiles, as in Ovis2.")
          .usage("fvlm.ovis2 { factor = 2, vocabulary = 65536 }")
          .field("factor", &Ovis2::factor, recipe::integer(recipe::at_least(1)), Ovis2::factor_doc)
          .field("vocabulary", &Ovis2::vocabulary, recipe::integer(recipe::at_least(Ovis2::min_vocabulary)),
                 "Words of the visual vocabulary, of which the last five are the learned rows.")
          .done());
}

nlohmann::json Ovis2::config_json() const {
  nlohmann::json out = SquaresOfPatches::config_json();
  out["vocabulary"] = vocabulary;
  return out;
}

void Ovis2::read_config(ConfigReader& reader) {
  reader.refuse_unknown(std::array{"kind", "factor", "vocabulary"});
  factor = reader.whole("factor", std::nullopt, 1, 64);
  vocabulary = reader.whole("vocabulary", std::nullopt, min_vocabulary, max_vocabulary);
}

// Initialized as transformers does it.
WeightLayout Ovis2::layout(int64_t encoder_width, int64_t decoder_width) const {
  const Initializer normal{Initializer::Kind::normal, 0.02}, zero, one{Initializer::Kind::constant, 1};
  const int64_t words = vocabulary - ImageIndicators::count;
  WeightLayout out;
  out.tensors = {{"head_linear.weight", {words, encoder_width * factor * factor}, normal},
                 {"head_norm.weight", {words}, one},
                 {"head_norm.bias", {words}, zero},
                 {"visual_embeddings_table.weight", {vocabulary, decoder_width}, normal}};
  return out;
}

} // namespace fvlm::connector
