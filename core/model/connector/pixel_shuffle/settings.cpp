#include "model/connector/pixel_shuffle/settings.h"

#include "model/connector/settings.h"
#include "model/weights/layout.h"

namespace fvlm::connector {

Settings pixel_shuffle_settings() {
  return recipe::alternative<plan::ConnectorSettings>(
      recipe::record<PixelShuffle>("PixelShuffle", "pixel_shuffle",
                                   "Squares of patches side by side in one row each, and a linear, as in SmolVLM.")
          .usage("fvlm.pixel_shuffle { factor = 4 }")
          .field("factor", &PixelShuffle::factor, recipe::integer(recipe::at_least(1)), PixelShuffle::factor_doc)
          .done());
}

// Initialized as transformers does it.
WeightLayout PixelShuffle::layout(int64_t encoder_width, int64_t decoder_width) const {
  WeightLayout out;
  out.tensors = {{"modality_projection.proj.weight",
                  {decoder_width, encoder_width * factor * factor},
                  {Initializer::Kind::normal, 0.02}}};
  return out;
}

} // namespace fvlm::connector
