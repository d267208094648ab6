// A toy encoder: each patch of a frame through one linear. It stands for what somebody adds to the engine: these two
// files, and the call of encoder_test.cpp in place of a line in encoders.inc.
#pragma once
#include "model/encoder/encoder.h"

namespace fvlm {

EncoderFamily patches_family();

namespace model {
std::unique_ptr<Encoder> patches_encoder(const VisionConfig& config, Parameters& parameters);
} // namespace model

} // namespace fvlm
