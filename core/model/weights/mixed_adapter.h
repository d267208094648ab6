// Several adapters of a model's decoder as a single one, so that a pass has rows of all of them. The As of a linear
// stand one below the other, the Bs, times their scales, side by side: x A^T has columns of each adapter, of which a
// row keeps its own (ops::RowAdapters).
#pragma once
#include "model/weights/attached_adapter.h"

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace fvlm {

struct MixedAdapter {
  AttachedAdapter adapter; // of the decoder alone
  // By linear of the decoder, which adapter each column of its x A^T is of.
  std::map<std::string, std::vector<int32_t>> owners;
};

// Of a model with one decoder: whether rows with this adapter can stand in a pass with those of others: of the decoder
// it has LoRA on linears in layers, not DoRA, and leaves all else as it is.
bool may_mix(const AttachedAdapter& adapter);

// `adapters`: which may mix, by number.
MixedAdapter mixed(const ModelDescription& base, const std::map<int32_t, const AttachedAdapter*>& adapters);

} // namespace fvlm
