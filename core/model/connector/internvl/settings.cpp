#include "model/connector/internvl/settings.h"

#include "model/connector/settings.h"
#include "model/weights/layout.h"

namespace fvlm::connector {

Settings internvl_settings() {
  return recipe::alternative<plan::ConnectorSettings>(
      recipe::record<InternVl>("InternVl", "internvl",
                               "Squares of patches side by side in one row each, a LayerNorm, and two linears with a "
                               "GELU between them, as in InternVL.")
          .usage("fvlm.internvl { factor = 2 }")
          .field("factor", &InternVl::factor, recipe::integer(recipe::at_least(1)), InternVl::factor_doc)
          .done());
}

// Initialized as transformers does it.
WeightLayout InternVl::layout(int64_t encoder_width, int64_t decoder_width) const {
  const Initializer normal{Initializer::Kind::normal, 0.02}, zero, one{Initializer::Kind::constant, 1};
  const int64_t square = encoder_width * factor * factor;
  WeightLayout out;
  out.tensors = {{"layer_norm.weight", {square}, one},
                 {"layer_norm.bias", {square}, zero},
                 {"linear_1.weight", {decoder_width, square}, normal},
                 {"linear_1.bias", {decoder_width}, zero},
                 {"linear_2.weight", {decoder_width, decoder_width}, normal},
                 {"linear_2.bias", {decoder_width}, zero}};
  return out;
}

} // namespace fvlm::connector
