// Writes a model directory with its linear weights quantized.
#pragma once
#include "model/weights/transfer.h"
#include "plugin/registry.h"
#include "plugin/selection.h"
#include "quantize/calibration.h"
#include "recipe/plan.h"

#include <filesystem>
#include <optional>

namespace fvlm::quantize {

struct QuantizeRequest {
  std::filesystem::path model, out;
  plan::Quantization quantization; // scheme, and the modules that stay as they are
  std::optional<DType> dtype;      // of what stays as it is; none: as in `model`
  Calibration calibration;         // empty: all input features weigh alike, and each weight is rounded by itself
  BackendPreference preference;    // of quantizers
};

// Checks the checksums of `model` first. Throws Error(usage) for an unknown scheme and where no linear weight is left,
// Error(data) for a model that is quantized already.
TransferReport quantize_model(const QuantizeRequest& request, Registry& registry, const TransferProgress& progress);

} // namespace fvlm::quantize
