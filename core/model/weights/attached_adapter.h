// Adapters as they are read beside the model that they are for: what they change of it, and nothing else.
#pragma once
#include "model/weights/model_directory.h"
#include "model/weights/whole_adapter.h"

#include <deque>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace fvlm {

struct AttachedAdapter {
  ModelDescription description; // the model's, whose parts have the adapters
  // Those of adapters, and what takes the place of the model's own, by names of the model directory.
  std::map<std::string, TensorView> tensors;
  std::vector<std::string> idle; // see WholeAdapter
  // Of what some of the tensors are views.
  std::deque<MergedWeight> merged;
  std::optional<PeftFolder> peft;
  std::optional<ModelDirectory> directory;
};

// Reads adapters for one model.
class AdapterReader {
 public:
  // Throws Error(data) for a model that has adapters itself.
  explicit AdapterReader(ModelDirectory base);

  const ModelDirectory& base() const { return base_; }
  // A PEFT folder, for the whole model or its decoder, or for `part` by itself. Throws Error(data) for what does not
  // fit. The checksums of bases are not set.
  AttachedAdapter read_peft(const std::filesystem::path& folder, const std::optional<std::string>& part = {}) const;
  // A model directory with adapters on the model's own weights, of which it may have others without adapters. Throws
  // Error(data) for one on other weights.
  AttachedAdapter read_directory(const std::filesystem::path& folder);
  // Either of them; of a run its newest checkpoint.
  AttachedAdapter read(const std::filesystem::path& folder);

 private:
  uint64_t checksum_of(const ModelPart& part); // of its weights, which are read once

  ModelDirectory base_;
  std::map<std::string, uint64_t> checksums_; // by part
};

} // namespace fvlm
