// What a model runs on and with, as a user says it: the same for every verb that runs one.
#pragma once
#include "model/parameters.h"
#include "ops/operations.h"

#include <string>
#include <vector>

namespace fvlm::model {

at::Device device_named(const std::string& name); // "cuda" is the first; whatever else is the CPU

struct Execution {
  std::string dtype = "fp32", device = "cpu"; // fp32, bf16 or fp64; cpu or cuda
  // Plugins, in order of preference, or OPERATION=PLUGIN for one operation of the kind kernels; empty: auto.
  std::vector<std::string> kernels;

  std::string text() const; // "in bf16 on the GPU"

  // Throws Error(usage) for a dtype or an operation that is not known.
  ops::OperationsOptions operations() const;
  ArenaOptions arena(bool trains) const;
  // Of a model that answers: on a CPU in fp32, a linear's weight that is stored in bf16 stays so, since reading it is
  // what a token takes. Where `kernels` names plugins, which may not have such linears, it is expanded.
  ArenaOptions answering_arena() const;
};

} // namespace fvlm::model
