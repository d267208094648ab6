#include "model/connector/lfm2_vl/settings.h"

#include "model/connector/settings.h"
#include "model/weights/layout.h"
#include "model/weights/model_family.h"

namespace fvlm::connector {

Settings lfm2_vl_settings() {
  return recipe::alternative<plan::ConnectorSettings>(
      recipe::record<Lfm2Vl>(
          "Lfm2Vl", "lfm2_vl",
          "Squares of patches side by side in one row each, a LayerNorm, and two linears with a GELU "
          "between them, as in LFM2-VL, LFM3-VL and MiniCPM-V.")
          .usage("fvlm.lfm2_vl { hidden = 2560 }")
          .field("factor", &Lfm2Vl::factor, recipe::integer(recipe::at_least(1)), Lfm2Vl::factor_doc)
          .field("hidden", &Lfm2Vl::hidden, recipe::integer(recipe::at_least(1)), "Numbers between the two linears.")
          .field("bias", &Lfm2Vl::bias, recipe::boolean(), "Whether the linears have biases.")
          .field("norm", &Lfm2Vl::norm, recipe::boolean(), "Whether squares are normalized.")
          .field("norm_patches", &Lfm2Vl::norm_patches, recipe::boolean(),
                 "Whether patches are normalized, as in LFM3-VL, and not the squares of them.")
          .field("norm_eps", &Lfm2Vl::norm_eps, recipe::number(recipe::above(0)),
                 "The epsilon of this norm; LFM3-VL and MiniCPM-V have 1e-6.")
          .done());
}

nlohmann::json Lfm2Vl::config_json() const {
  nlohmann::json out = SquaresOfPatches::config_json();
  out["hidden"] = hidden;
  out["bias"] = bias;
  out["norm"] = norm;
  if (norm_patches) out["norm_patches"] = true;
  if (norm_eps != usual_eps) out["norm_eps"] = norm_eps;
  return out;
}

void Lfm2Vl::read_config(ConfigReader& reader) {
  reader.refuse_unknown(std::array{"kind", "factor", "hidden", "bias", "norm", "norm_patches", "norm_eps"});
  factor = reader.whole("factor", 2, 1, 64);
  hidden = reader.whole("hidden", 2560, 1, most_features);
  bias = reader.flag("bias", true);
  norm = reader.flag("norm", true);
  norm_patches = reader.flag("norm_patches", false);
  norm_eps = reader.number("norm_eps", usual_eps, 0, 1);
}

// Initialized as transformers does it.
WeightLayout Lfm2Vl::layout(int64_t encoder_width, int64_t decoder_width) const {
  const Initializer normal{Initializer::Kind::normal, 0.02}, zero, one{Initializer::Kind::constant, 1};
  const int64_t square = encoder_width * factor * factor, normed = norm_patches ? encoder_width : square;
  WeightLayout out;
  const auto add_linear = [&](const std::string& stem, int64_t outputs, int64_t inputs) {
    out.tensors.push_back({stem + ".weight", {outputs, inputs}, normal});
    if (bias) out.tensors.push_back({stem + ".bias", {outputs}, zero});
  };
  if (norm) out.tensors = {{"layer_norm.weight", {normed}, one}, {"layer_norm.bias", {normed}, zero}};
  add_linear("linear_1", hidden, square);
  add_linear("linear_2", decoder_width, hidden);
  return out;
}

} // namespace fvlm::connector
