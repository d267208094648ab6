#include "model/connector/qwen2_vl/settings.h"

#include "model/connector/settings.h"
#include "model/weights/layout.h"
#include "model/weights/model_family.h"

#include <fmt/format.h>

namespace fvlm::connector {

Settings qwen2_vl_settings() {
  return recipe::alternative<plan::ConnectorSettings>(
      recipe::record<Qwen2Vl>(
          "Qwen2Vl", "qwen2_vl",
          "The normalized patches of each cell of an image side by side in one row, and two linears "
          "with a GELU between them, as in Qwen2-VL, Qwen2.5-VL, Qwen3-VL, Qwen3.5 and PaddleOCR-VL.")
          .usage("fvlm.qwen2_vl { rms_norm = true }")
          .field("factor", &Qwen2Vl::factor, recipe::integer(recipe::at_least(1)),
                 "Patches along each side of a cell, as the encoder has them.")
          .field("rms_norm", &Qwen2Vl::rms_norm, recipe::boolean(),
                 "Whether patches are normalized by an RMSNorm, as in Qwen2.5-VL, or by a LayerNorm.")
          .field("norm_eps", &Qwen2Vl::norm_eps, recipe::number(recipe::above(0)),
                 "The epsilon of these norms; PaddleOCR-VL has 1e-5.")
          .field("deepstack", &Qwen2Vl::deepstack, recipe::integer(recipe::at_least(0)),
                 "For how many of the decoder's first layers an image has further rows, made of as many other layers "
                 "of the encoder, as in Qwen3-VL.")
          .done());
}

nlohmann::json Qwen2Vl::config_json() const {
  nlohmann::json out = SquaresOfPatches::config_json();
  if (rms_norm) out["rms_norm"] = true;
  if (norm_eps != usual_eps) out["norm_eps"] = norm_eps;
  if (deepstack > 0) out["deepstack"] = deepstack;
  return out;
}

void Qwen2Vl::read_config(ConfigReader& reader) {
  reader.refuse_unknown(std::array{"kind", "factor", "rms_norm", "norm_eps", "deepstack"});
  factor = reader.whole("factor", 2, 1, 64);
  rms_norm = reader.flag("rms_norm", false);
  norm_eps = reader.number("norm_eps", usual_eps, 0, 1);
  deepstack = reader.whole("deepstack", 0, 0, most_layers);
}

std::string Qwen2Vl::deepstack_merger(int64_t index) {
  return fmt::format("deepstack_merger_list.{}.", index);
}

// Initialized as transformers does it.
WeightLayout Qwen2Vl::layout(int64_t encoder_width, int64_t decoder_width) const {
  const Initializer normal{Initializer::Kind::normal, 0.02}, zero, one{Initializer::Kind::constant, 1};
  const int64_t cell = encoder_width * factor * factor;
  WeightLayout out;
  out.tensors.push_back({"ln_q.weight", {encoder_width}, one});
  if (!rms_norm) out.tensors.push_back({"ln_q.bias", {encoder_width}, zero});
  const auto add_linears = [&](const std::string& first, const std::string& second) {
    out.tensors.push_back({first + ".weight", {cell, cell}, normal});
    out.tensors.push_back({first + ".bias", {cell}, zero});
    out.tensors.push_back({second + ".weight", {decoder_width, cell}, normal});
    out.tensors.push_back({second + ".bias", {decoder_width}, zero});
  };
  add_linears("mlp.0", "mlp.2");
  for (int64_t i = 0; i < deepstack; ++i) {
    const std::string merger = deepstack_merger(i);
    out.tensors.push_back({merger + "norm.weight", {cell}, one});
    if (!rms_norm) out.tensors.push_back({merger + "norm.bias", {cell}, zero});
    add_linears(merger + "linear_fc1", merger + "linear_fc2");
  }
  return out;
}

} // namespace fvlm::connector
