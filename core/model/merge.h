// Adapters added to their base: a model directory of plain weights.
#pragma once
#include "model/weights/transfer.h"

#include <filesystem>
#include <optional>

namespace fvlm::model {

// dtype: none: every tensor as the base has it, and what is quantized there as its part's other tensors.
TransferReport merge_adapters(const std::filesystem::path& model, const std::filesystem::path& out,
                              std::optional<DType> dtype, const TransferProgress& progress);

} // namespace fvlm::model
