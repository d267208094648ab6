// One batch in, every number out: to hold the engine against one's own PyTorch.
#pragma once
#include "model/execution.h"
#include "plugin/registry.h"

#include <filesystem>
#include <string>

namespace fvlm::model {

struct TraceRequest {
  std::filesystem::path model, batch, out, reference;
  std::string mode;        // of the connector; empty: its first
  bool preference = false; // DPO in place of cross-entropy
  double lambda_coarse = 0, beta = 0.1;
  Execution execution;
  bool gradients = false, attention = false;
};

// Returns the loss. Throws Error(usage) for what does not go together, Error(data) for a batch that makes no sense.
double trace(const TraceRequest& request, Registry& registry);

} // namespace fvlm::model
