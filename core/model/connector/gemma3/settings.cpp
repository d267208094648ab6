#include "model/connector/gemma3/settings.h"

#include "model/connector/settings.h"
#include "model/weights/layout.h"

namespace fvlm::connector {

Settings gemma3_settings() {
  return recipe::alternative<plan::ConnectorSettings>(
      recipe::record<Gemma3>("Gemma3", "gemma3",
                             "The mean of every square of patches, an RMSNorm and a matrix, as in Gemma 3. In the "
                             "decoder the rows of an image attend to each other.")
          .usage("fvlm.gemma3 { factor = 4 }")
          .field("factor", &Gemma3::factor, recipe::integer(recipe::at_least(1)), Gemma3::factor_doc)
          .done());
}

// transformers begins with a projection of zeros, which lets no gradient reach the encoder.
WeightLayout Gemma3::layout(int64_t encoder_width, int64_t decoder_width) const {
  WeightLayout out;
  out.tensors = {
      {"mm_soft_emb_norm.weight", {encoder_width}, Initializer{}},
      {"mm_input_projection_weight", {encoder_width, decoder_width}, Initializer{Initializer::Kind::normal, 0.02}}};
  return out;
}

} // namespace fvlm::connector
