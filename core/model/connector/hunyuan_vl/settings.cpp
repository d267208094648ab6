#include "model/connector/hunyuan_vl/settings.h"

#include "model/connector/settings.h"
#include "model/weights/layout.h"
#include "model/weights/model_family.h"

#include <cmath>

namespace fvlm::connector {

Settings hunyuan_vl_settings() {
  return recipe::alternative<plan::ConnectorSettings>(
      recipe::record<HunyuanVl>("HunyuanVl", "hunyuan_vl",
                                "The normalized patches of each square side by side in one row, two linears with a "
                                "GELU between them, and a linear that makes a row of the decoder of that, normalized; "
                                "with learned rows at the end of each line of squares, before an image and behind it, "
                                "as in HunyuanOCR.")
          .usage("fvlm.hunyuan_vl { factor = 2 }")
          .field("factor", &HunyuanVl::factor, recipe::integer(recipe::at_least(1)), HunyuanVl::factor_doc)
          .field("norm_eps", &HunyuanVl::norm_eps, recipe::number(recipe::above(0)), "The epsilon of both norms.")
          .done());
}

nlohmann::json HunyuanVl::config_json() const {
  nlohmann::json out = SquaresOfPatches::config_json();
  out["norm_eps"] = norm_eps;
  return out;
}

void HunyuanVl::read_config(ConfigReader& reader) {
  reader.refuse_unknown(std::array{"kind", "factor", "norm_eps"});
  factor = reader.whole("factor", 2, 1, 64);
  norm_eps = reader.number("norm_eps", 1e-5, 0, 1);
}

// Initialized as transformers does it.
WeightLayout HunyuanVl::layout(int64_t encoder_width, int64_t decoder_width) const {
  const Initializer normal{Initializer::Kind::normal, 0.02}, zero, one{Initializer::Kind::constant, 1},
      learned{Initializer::Kind::normal, 1 / std::sqrt(static_cast<double>(decoder_width))};
  const int64_t width = encoder_width, inner = 2 * width, merged = 4 * width;
  WeightLayout out;
  out.tensors = {{"proj_conv.weight", {inner, width, factor, factor}, normal},
                 {"proj_conv.bias", {inner}, zero},
                 {"proj_out.weight", {merged, inner, 1, 1}, normal},
                 {"proj_out.bias", {merged}, zero},
                 {"mlp.weight", {decoder_width, merged}, normal},
                 {"mlp.bias", {decoder_width}, zero},
                 {"image_newline", {merged}, learned},
                 {"image_begin", {decoder_width}, learned},
                 {"image_end", {decoder_width}, learned},
                 {"image_sep", {decoder_width}, learned},
                 {"before_rms.weight", {width}, one},
                 {"after_rms.weight", {decoder_width}, one}};
  for (TensorSpec& spec : out.tensors) spec.is_fixed = spec.name == "image_sep"; // which nothing reads
  return out;
}

} // namespace fvlm::connector
