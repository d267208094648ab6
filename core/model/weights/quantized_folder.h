// Hugging Face folders whose weights are quantized in a form that others publish: FP8 with scales of tensors, channels
// or blocks, compressed-tensors' int8, GPTQ, AWQ, bitsandbytes. They are read as plain weights, so that what reads a
// folder does not know of them. compressed-tensors' pack-quantized is the engine's own form, which stays as it is: see
// packed_weight.h.
#pragma once
#include "model/weights/safetensors.h"

#include <nlohmann/json_fwd.hpp>

#include <string>

namespace fvlm {

// The file's tensors with a plain weight, which has a dequantizer, in place of the tensors of each quantized one. Takes
// quantization_config out of the folder's config.json, which says the form, and which `where` names. Throws Error(data)
// for other forms, and for tensors that are not of the form.
Safetensors plain_weights(const Safetensors& file, nlohmann::json& config, const std::string& where);

// The forms, for messages.
std::string quantized_forms();

} // namespace fvlm
