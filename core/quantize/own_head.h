// A head of its own for a decoder whose head is tied to its embedding, so that it can be quantized: tokens are looked
// up by their numbers.
#pragma once
#include "model/weights/model_directory.h"

namespace fvlm::quantize {

// In the description alone. ModelDirectory::at() finds the numbers of such a head in the embedding.
void give_own_heads(ModelDescription& description);

} // namespace fvlm::quantize
