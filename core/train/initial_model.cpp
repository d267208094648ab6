#include "train/initial_model.h"

#include "base/error.h"
#include "base/text.h"
#include "model/loading.h"
#include "model/weights/initialize.h"
#include "train/groups.h"

#include <ATen/ops/from_blob.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <deque>
#include <map>

namespace fvlm::train {
namespace {

void fill_fresh(ops::Parameter& parameter, const Initializer& initializer, uint64_t seed) {
  std::vector<float> values(static_cast<size_t>(parameter.value.numel()));
  initialize_weights(values, initializer, seed, directory_name(parameter.name));
  parameter.value.copy_(model::in_memory(parameter, at::from_blob(values.data(), parameter.value.sizes(), at::kFloat)));
}

// Where the weights of a description's folders are, by name in the model directory; what they lack is made fresh.
class FolderWeights {
 public:
  explicit FolderWeights(const ModelDescription& description) {
    for (const ModelPart& part : description.parts) {
      const WeightLayout& layout = layouts_.emplace_back(description.layout(part));
      const auto name = [&](const TensorSpec& spec) { return part.name + "." + spec.name; };
      if (!part.folder.weights) {
        for (const TensorSpec& spec : layout.tensors) fresh_[name(spec)] = &spec;
        continue;
      }
      const WeightLayout& stored =
          layouts_.emplace_back(stored_layout(layout, *part.folder.weights, part.folder.config));
      const auto views = bind(*part.folder.weights, stored);
      size_t at = 0; // in the file: three tensors for a quantized weight
      for (const TensorSpec& spec : layout.tensors) {
        const PackedScheme* scheme = scheme_of_codes(stored.tensors[at]);
        if (scheme && !part.adapter) refuse_quantized(part, spec);
        if (views[at])
          given_[name(spec)] = {views[at], scheme ? views[at + 1] : nullptr, scheme, part.folder.path.string()};
        else
          fresh_[name(spec)] = &spec;
        at += scheme ? 3 : 1;
      }
      if (!part.adapter) continue;
      const WeightLayout& own = layouts_.emplace_back(adapter_layout(*part.adapter, layout));
      for (const TensorSpec& spec : own.tensors)
        if (!part.adapter->saves(spec.name)) fresh_[name(spec)] = &spec;
    }
  }

  const PackedScheme* scheme_of(const std::string& name) const {
    const auto found = given_.find(name);
    return found == given_.end() ? nullptr : found->second.scheme;
  }
  bool is_fresh(const std::string& name) const { return fresh_.contains(name); }
  std::map<std::string, const TensorView*> plain() const {
    std::map<std::string, const TensorView*> views;
    for (const auto& [name, given] : given_)
      if (!given.scheme) views[name] = given.view;
    return views;
  }

  void load(ops::Parameter& parameter, uint64_t seed) const {
    const std::string name = directory_name(parameter.name);
    const auto found = given_.find(name);
    if (found == given_.end()) return fill_fresh(parameter, fresh_.at(name)->fill, seed);
    const Given& given = found->second;
    if (given.scheme)
      model::load_packed(*given.view, *given.scale, given.file, parameter);
    else
      parameter.value.copy_(model::in_memory(parameter, model::tensor_over(*given.view)));
  }

 private:
  struct Given {
    const TensorView *view, *scale;
    const PackedScheme* scheme; // null: `view` has the numbers
    std::string file;
  };

  [[noreturn]] static void refuse_quantized(const ModelPart& part, const TensorSpec& spec) {
    throw Error(ErrorKind::data, "the part {} is quantized ({}), and quantized weights cannot be trained", part.name,
                shown(spec.name))
        .at(part.folder.path.string())
        .advise("put adapters on it (adapters = fvlm.lora { ... } of the model), or use the model that it was "
                "quantized from");
  }

  std::deque<WeightLayout> layouts_; // which the others point into
  std::map<std::string, const TensorSpec*> fresh_;
  std::map<std::string, Given> given_;
};

// An alpha may be a number that was rounded for a recipe.
bool same_module(const AdaptedModule& a, const AdaptedModule& b) {
  constexpr double rounding = 1e-5;
  return a.name == b.name && a.rank == b.rank && std::abs(a.alpha - b.alpha) <= rounding * a.alpha;
}

// The first module in which the adapters of a directory are others than the recipe's.
std::string first_difference(const PartAdapter& found, const PartAdapter& recipe) {
  const auto text = [](const AdaptedModule* module) {
    return module ? fmt::format("rank {}, alpha {:g}", module->rank, module->alpha) : std::string("none");
  };
  const auto differ = [&](const std::string& name) {
    return fmt::format("; of {} {}, and the recipe's {}", shown(name), text(found.find(name)), text(recipe.find(name)));
  };
  for (const AdaptedModule& module : found.modules)
    if (const AdaptedModule* other = recipe.find(module.name); !other || !same_module(module, *other))
      return differ(module.name);
  for (const AdaptedModule& module : recipe.modules)
    if (!found.find(module.name)) return differ(module.name);
  return "";
}

void require_same_base(const ModelDirectory& directory, const ModelPart& part, const ModelPart& other) {
  const PartAdapter& ours = *part.adapter;
  const std::string of_directory = other.adapter ? other.adapter->base.folder : other.folder.path.string();
  std::error_code ignored;
  const bool same_folder = std::filesystem::equivalent(of_directory, ours.base.folder, ignored);
  const uint64_t theirs = other.adapter ? other.adapter->base.checksum
                          : same_folder ? ours.base.checksum
                                        : base_checksum(*other.folder.weights);
  if (theirs != ours.base.checksum)
    throw Error(ErrorKind::data,
                "{} the part {} are those of {} (checksum {:016x}), and this recipe's adapters are on {} ({:016x})",
                other.adapter ? "the weights below the adapters of" : "the weights of", part.name, shown(of_directory),
                theirs, shown(ours.base.folder), ours.base.checksum)
        .at(directory.path().string())
        .advise(same_folder ? "the base has changed since: put it back as it was"
                            : "name that base in the recipe's model, or start from a checkpoint with this one");
  if (!other.adapter) return;
  const PartAdapter& found = *other.adapter;
  if (found.dora != ours.dora || !std::ranges::equal(found.modules, ours.modules, same_module))
    throw Error(ErrorKind::data, "the adapters of the part {} have {}, and the recipe's {}{}", part.name,
                found.summary(), ours.summary(), first_difference(found, ours))
        .at(directory.path().string())
        .advise("make the recipe's fvlm.lora equal (rank_pattern and alpha_pattern are for single modules), or merge "
                "those adapters and start from the result");
}

std::unique_ptr<model::Model> make_with(const ModelDescription& description, const FolderWeights& weights,
                                        const model::ArenaOptions& options) {
  model::ArenaOptions own = options;
  own.scheme_of = [&](const model::ParameterSpec& spec) { return weights.scheme_of(directory_name(spec.name)); };
  return std::make_unique<model::Model>(model::config_of(description), own);
}

} // namespace

std::unique_ptr<model::Model> make_model(const ModelDescription& description, uint64_t seed,
                                         const model::ArenaOptions& options) {
  const FolderWeights weights(description);
  auto model = make_with(description, weights, options);
  for (ops::Parameter& parameter : model->parameters().all())
    if (!parameter.in_base || !options.shares_base_with) weights.load(parameter, seed);
  for (const auto& [name, value] : model->connector().initial_values())
    if (weights.is_fresh(directory_name(name))) model->parameters().at(name).value.copy_(value);
  model::initialize_magnitudes(model->parameters(), model->config().adapters);
  return model;
}

std::unique_ptr<model::Model> make_bare(const ModelDescription& description, const model::ArenaOptions& options) {
  if (!description.has_adapters()) return std::make_unique<model::Model>(model::config_of(description), options);
  const FolderWeights weights(description);
  auto model = make_with(description, weights, options);
  for (ops::Parameter& parameter : model->parameters().all())
    if (parameter.in_base && !options.shares_base_with) weights.load(parameter, 0);
  return model;
}

SchemeOf schemes_of(const ModelDescription& description) {
  if (!description.has_adapters()) return {};
  const auto weights = std::make_shared<const FolderWeights>(description);
  return [weights](const model::ParameterSpec& spec) { return weights->scheme_of(directory_name(spec.name)); };
}

std::map<std::string, const TensorView*> folder_views(const ModelDescription& description) {
  return FolderWeights(description).plain();
}

void require_same_base(const ModelDirectory& directory, const ModelDescription& description) {
  for (const ModelPart& part : description.parts)
    for (const ModelPart& other : directory.description().parts) {
      if (other.name != part.name) continue;
      if (!part.adapter && other.adapter) directory.require_no_adapters("a recipe without them");
      if (part.adapter) require_same_base(directory, part, other);
    }
}

std::unique_ptr<model::Model> make_from(const ModelDirectory& directory, const ModelDescription& description,
                                        uint64_t seed, const model::ArenaOptions& options) {
  require_same_base(directory, description);
  auto made = description.has_adapters() ? make_model(description, seed, options) : make_bare(description, options);
  const bool has_adapters = directory.description().has_adapters();
  model::load_weights(directory, *made, [&](const ops::Parameter& parameter) {
    return !parameter.in_base && (has_adapters || !model::is_of_adapter(parameter.name));
  });
  return made;
}

} // namespace fvlm::train
