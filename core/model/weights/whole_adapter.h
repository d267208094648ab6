// PEFT adapters of a whole Hugging Face model: what transformers calls the parameters of the parts, and which tensors
// of an adapter belong to which part.
#pragma once
#include "model/weights/adapter.h"
#include "model/weights/whole_model.h"

#include <map>
#include <optional>
#include <string>
#include <vector>

namespace fvlm {

// Names of parameters and modules in a model directory that was imported from one folder ("vision.X", "connector.X",
// "decoder.X"), and in transformers' model of that folder.
class WholeNames {
 public:
  // Nothing for a model directory that was not imported from one folder.
  static std::optional<WholeNames> of(const ModelDescription& description);

  // As transformers 5 calls it: "model.language_model.layers.0.mlp.up_proj.weight".
  std::string in_transformers(const std::string& name) const;
  // What a name in transformers' model, of version 5 or before, may be in the directory; the likeliest first.
  std::vector<std::string> in_directory(const std::string& name) const;

 private:
  explicit WholeNames(const WholeModelFamily& family) : family_(&family) {}
  const WholeModelFamily* family_;
};

// The tensors of a PEFT folder, divided among the parts of the model that it is for.
struct WholeAdapter {
  std::map<std::string, std::vector<PeftTensor>> parts;
  // Modules whose adapters add nothing, as B is zero, and that cannot have adapters here: layers that nothing reads,
  // for instance, which `all-linear` targets and training never changes.
  std::vector<std::string> idle;
};
// Names are those of the whole model where `base` was imported from one folder, or those of its decoder alone. Throws
// Error(data) for a tensor that has no place in the model.
WholeAdapter divide(const PeftFolder& source, const ModelDirectory& base);

// A weight with an adapter added to it, float32.
struct MergedWeight {
  std::string name;
  std::vector<float> values;
  TensorView view() const; // of these values
  std::vector<int64_t> shape;
};
// Of a connector, whose weights are in every model directory: those that `tensors` has LoRA or DoRA for.
std::vector<MergedWeight> merged_weights(const PeftFolder& source, const std::vector<PeftTensor>& tensors,
                                         const ModelDirectory& base, const std::string& part);

} // namespace fvlm
