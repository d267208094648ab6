#include "model/connector/gemma4/settings.h"

#include "model/connector/settings.h"
#include "model/weights/layout.h"

namespace fvlm::connector {

Settings gemma4_settings() {
  return recipe::alternative<plan::ConnectorSettings>(
      recipe::record<Gemma4>("Gemma4", "gemma4",
                             "The mean of every square of patches times the root of its width, an RMSNorm without a "
                             "weight and a matrix, as in Gemma 4.")
          .usage("fvlm.gemma4 { factor = 3 }")
          .field("factor", &Gemma4::factor, recipe::integer(recipe::at_least(1)), Gemma4::factor_doc)
          .field("standardize", &Gemma4::standardize, recipe::boolean(),
                 "Subtract a bias from the means and multiply them by a scale before the norm: numbers of the imported "
                 "model, which do not train.")
          .field("norm_eps", &Gemma4::norm_eps, recipe::number(recipe::above(0)), "The epsilon of the norm.")
          .done());
}

nlohmann::json Gemma4::config_json() const {
  nlohmann::json out{{"factor", factor}};
  if (standardize) out["standardize"] = true;
  if (norm_eps != Gemma4().norm_eps) out["norm_eps"] = norm_eps;
  return out;
}

void Gemma4::read_config(ConfigReader& reader) {
  reader.refuse_unknown(std::array{"kind", "factor", "standardize", "norm_eps"});
  factor = reader.whole("factor", Gemma4().factor, 1, 64);
  standardize = reader.flag("standardize", false);
  norm_eps = reader.number("norm_eps", Gemma4().norm_eps, 0, 1);
}

// Initialized as transformers does it.
WeightLayout Gemma4::layout(int64_t encoder_width, int64_t decoder_width) const {
  WeightLayout out;
  if (standardize)
    for (const auto& [name, value] : {std::pair("std_bias", 0.0), std::pair("std_scale", 1.0)}) {
      out.tensors.push_back({name, {encoder_width}, Initializer{Initializer::Kind::constant, value}});
      out.tensors.back().is_fixed = true;
    }
  out.tensors.push_back(
      {"embedding_projection.weight", {decoder_width, encoder_width}, Initializer{Initializer::Kind::normal, 0.02}});
  return out;
}

} // namespace fvlm::connector
