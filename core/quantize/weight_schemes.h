// Which weights of a model are stored quantized, and in which scheme.
#pragma once
#include "model/weights/model_directory.h"
#include "recipe/plan.h"

namespace fvlm::quantize {

// A value of --head as plan::Quantization has it. Throws Error(usage) for what is not the name of a scheme of weights.
std::string head_scheme(const std::string& name);

// Of the model as it is written: with heads of its own where those are quantized.
ModelDescription description_of(const ModelDirectory& directory, const plan::Quantization& quantization);

// By names in the model directory. Throws Error(usage) for an unknown scheme, a head that does not go with it, where no
// linear weight is left, and for weights that are read as one matrix of which some are skipped.
WeightSchemes weight_schemes(const ModelDescription& description, const plan::Quantization& quantization);

} // namespace fvlm::quantize
