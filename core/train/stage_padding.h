// How training on a device pads a stage's packs, known without training.
#pragma once
#include "train/padding.h"
#include "train/stage_data.h"

#include <c10/core/Device.h>

namespace fvlm::train {

// A model that does not exist yet is assumed to be large, and its decoder to be most of it.
PackPadding padding_of(const plan::Plan& plan, const StageData& data, at::Device device);

} // namespace fvlm::train
