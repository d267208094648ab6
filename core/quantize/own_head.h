// A head of its own for a decoder whose head is tied to its embedding, so that it can be quantized: tokens are looked
// up by their numbers.
#pragma once
#include "model/weights/model_directory.h"

namespace fvlm::quantize {

// In the description alone.
void give_own_heads(ModelDescription& description);
// The parameter that has the numbers: of a head that is tied in the directory the embedding.
const Parameter& source_of(const ModelDirectory& directory, const std::string& name);

} // namespace fvlm::quantize
