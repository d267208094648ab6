#include "train/weight_sources.h"

#include "model/loading.h"
#include "train/groups.h"
#include "train/initial_model.h"

namespace fvlm::train {
namespace {

using Views = std::map<std::string, const TensorView*>;

Views views_of(const ModelDirectory& directory) {
  Views views;
  for (const fvlm::Parameter& parameter : directory.parameters())
    if (!parameter.scheme) views[parameter.name] = parameter.view;
  return views;
}

void find_in(const Views& views, const model::Parameters& parameters, UntrainedWeights& found) {
  for (const ops::Parameter& parameter : parameters.all()) {
    if (parameter.in_base || parameter.gradient.defined() || !parameter.scheme.empty()) continue;
    const std::string name = directory_name(parameter.name);
    const auto view = views.find(name);
    if (view == views.end() || found.contains(name)) continue;
    const TensorView& stored = *view->second;
    const at::Tensor& value = parameter.value;
    if (model::scalar_type(stored.dtype) == value.scalar_type() || stored.shape != value.sizes().vec()) continue;
    const at::Tensor of_file = model::tensor_over(stored);
    if (model::in_memory(parameter, of_file).to(value.options()).equal(value)) found[name] = of_file;
  }
}

} // namespace

UntrainedWeights WeightSources::untrained(const model::Parameters& parameters) const {
  UntrainedWeights found;
  for (const ModelDirectory& directory : directories_) find_in(views_of(directory), parameters, found);
  find_in(folder_views(description_), parameters, found);
  return found;
}

} // namespace fvlm::train
