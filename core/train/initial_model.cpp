#include "train/initial_model.h"

#include "model/loading.h"
#include "model/weights/initialize.h"
#include "train/groups.h"

#include <ATen/ops/from_blob.h>
#include <fmt/format.h>

namespace fvlm::train {
std::unique_ptr<model::Model> make_model(const ModelDescription& description, uint64_t seed,
                                         const model::ArenaOptions& options) {
  auto model = std::make_unique<model::Model>(model::config_of(description), options);
  std::map<std::string, const TensorSpec*> fresh;
  std::map<std::string, const TensorView*> given;
  std::vector<WeightLayout> layouts;
  layouts.reserve(description.parts.size()); // `fresh` points into them
  for (const ModelPart& part : description.parts) {
    const WeightLayout& layout = layouts.emplace_back(description.layout(part));
    std::vector<const TensorView*> views(layout.tensors.size());
    if (part.folder.weights) views = bind(*part.folder.weights, layout);
    for (size_t i = 0; i < views.size(); ++i) {
      const TensorSpec& spec = layout.tensors[i];
      const std::string name = part.name + "." + spec.name;
      if (views[i])
        given[name] = views[i];
      else
        fresh[name] = &spec;
    }
  }
  for (ops::Parameter& parameter : model->parameters().all()) {
    const std::string name = directory_name(parameter.name);
    if (const auto view = given.find(name); view != given.end()) {
      parameter.value.copy_(model::tensor_over(*view->second));
      continue;
    }
    std::vector<float> values(static_cast<size_t>(parameter.value.numel()));
    initialize_weights(values, fresh.at(name)->fill, seed, name);
    parameter.value.copy_(at::from_blob(values.data(), parameter.value.sizes(), at::kFloat));
  }
  for (const auto& [name, value] : model->connector().initial_values())
    if (fresh.contains(directory_name(name))) model->parameters().at(name).value.copy_(value);
  return model;
}

} // namespace fvlm::train
