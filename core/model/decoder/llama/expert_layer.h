// An MLP that is a mixture of experts, with the expert that reads all rows where there is one.
#pragma once
#include "model/parameters.h"
#include "model/part.h"
#include "model/weights/towers.h"
#include "ops/experts.h"

#include <string>

namespace fvlm::model {

struct ExpertLayer {
  // `stem`: before the names of the layer's tensors.
  ExpertLayer(const DecoderConfig& config, Parameters& parameters, const std::string& stem);
  Value forward(Tape& tape, Operations& ops, const Value& x) const;

 private:
  ops::Weight router_;
  ops::Routing routing_;
  ops::ExpertWeights experts_;
  ops::ExpertProducts products_;
  ops::Operations::Layer shared_up_, shared_down_; // undefined: no expert reads all rows
  ops::Weight shared_gate_;
};

} // namespace fvlm::model
