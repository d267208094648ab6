#include "model/weights/whole_adapter.h"

#include "base/error.h"
#include "base/text.h"
#include "model/weights/convert.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <set>

namespace fvlm {
namespace {

constexpr std::string_view lora = ".lora_", model_prefix = "model.";
constexpr const char* how_to_merge =
    "merge it with PEFT (merge_and_unload()), save the model and import that; or name the base that it was trained on";

std::string owner_of(const std::string& tensor) {
  const size_t at = tensor.find(lora);
  return tensor.substr(0, at == tensor.npos ? tensor.rfind('.') : at);
}

bool is_lora(const std::string& tensor) {
  return tensor.find(lora) != tensor.npos;
}

std::vector<float> numbers_of(const TensorView& view) {
  std::vector<float> numbers(view.elements());
  convert(view.data, view.dtype, std::as_writable_bytes(std::span(numbers)), DType::f32);
  return numbers;
}

// Finds the places of tensors in the parts of a model directory.
class Divider {
 public:
  Divider(const PeftFolder& source, const ModelDirectory& base)
      : source_(source), base_(base), names_(WholeNames::of(base.description())) {
    for (const ModelPart& part : base.description().parts) {
      const WeightLayout& layout = layouts_.emplace(part.name, base.description().layout(part)).first->second;
      for (const TensorSpec& spec : layout.tensors)
        if (spec.parameter) parameters_.insert(part.name + "." + spec.name);
      if (part.role() == Role::connector) {
        for (const TensorSpec& spec : layout.tensors)
          if (spec.shape.size() == 2 && spec.name.ends_with(".weight"))
            linears_.insert(part.name + "." + module_of(spec.name));
      } else {
        for (const std::string& linear : linears_of(layout)) linears_.insert(part.name + "." + linear);
      }
    }
  }

  WholeAdapter run() {
    std::map<std::string, const TensorView*> homeless; // modules that have no place, and their B
    std::vector<std::string> unknown;
    for (const TensorView& view : source_.file.tensors()) {
      const std::string in_model = view.name.substr(PeftFolder::prefix.size());
      if (const auto place = find(in_model)) {
        const size_t dot = place->find('.');
        PeftTensor tensor{view, owner_of(in_model)};
        tensor.view.name = place->substr(dot + 1);
        out_.parts[place->substr(0, dot)].push_back(std::move(tensor));
      } else if (is_lora(in_model)) {
        const TensorView*& b = homeless[owner_of(in_model)];
        if (in_model == lora_b_of(owner_of(in_model))) b = &view;
      } else if (!is_copy_of_embedding(in_model, view)) {
        unknown.push_back(in_model);
      }
    }
    for (const auto& [module, b] : homeless) leave_out(module, b);
    if (!unknown.empty())
      refuse(fmt::format("the adapter has {}, and the model has no such parameter", shown(unknown[0])));
    return std::move(out_);
  }

 private:
  std::vector<std::string> candidates(const std::string& in_model) const {
    std::vector<std::string> all = names_ ? names_->in_directory(in_model) : std::vector<std::string>();
    all.push_back("decoder." + in_model); // an adapter of the decoder alone
    return all;
  }

  std::optional<std::string> find(const std::string& in_model) const {
    for (const std::string& candidate : candidates(in_model)) {
      const auto layout = layouts_.find(candidate.substr(0, candidate.find('.')));
      if (layout == layouts_.end()) continue;
      std::string name = in_folder(candidate, layout->second);
      if (is_lora(name) ? linears_.contains(owner_of(name)) : parameters_.contains(name)) return name;
    }
    return {};
  }

  [[noreturn]] void refuse(const std::string& what) const {
    throw Error(ErrorKind::data, "{}", what).at(source_.file.path().string()).advise(how_to_merge);
  }

  // An adapter whose B is zero computes nothing, and DoRA's nothing that matters where the model has no such weight.
  void leave_out(const std::string& module, const TensorView* b) {
    const auto is_weight = [&](const std::string& candidate) { return parameters_.contains(candidate + ".weight"); };
    if (!b || std::ranges::any_of(numbers_of(*b), [](float each) { return each != 0; }) ||
        (source_.settings.dora && std::ranges::any_of(candidates(module), is_weight)))
      refuse(fmt::format("the adapter is for {}, which is no linear of this model that can have one", shown(module)));
    out_.idle.push_back(module);
  }

  // Of an output head that is the embedding here, as PEFT saves both.
  bool is_copy_of_embedding(const std::string& in_model, const TensorView& view) const {
    for (const std::string& candidate : candidates(in_model))
      for (const auto& [part, layout] : layouts_) {
        if (layout.tied_copy.empty() || candidate != part + "." + layout.tied_copy) continue;
        const std::string embedding = part + "." + layout.tied_to;
        for (const TensorView& other : source_.file.tensors())
          if (find(other.name.substr(PeftFolder::prefix.size())) == embedding)
            return std::ranges::equal(other.data, view.data);
        return std::ranges::equal(base_.at(embedding).view->data, view.data);
      }
    return false;
  }

  const PeftFolder& source_;
  const ModelDirectory& base_;
  std::optional<WholeNames> names_;
  std::map<std::string, WeightLayout> layouts_;
  std::set<std::string> parameters_, linears_; // in the model directory
  WholeAdapter out_;
};

} // namespace

std::optional<WholeNames> WholeNames::of(const ModelDescription& description) {
  for (const ModelPart& part : description.parts)
    if (const nlohmann::json& whole = part.folder.whole_model; whole.is_object() && whole.contains("config"))
      return WholeNames(whole_model_family(whole.at("config"), part.folder.path.string()));
  return {};
}

std::string WholeNames::in_transformers(const std::string& name) const {
  constexpr std::string_view tower = "model.vision_tower.", level = "vision_model."; // which version 5 has no more
  for (const WholeModelFamily::Prefix& prefix : family_->names) {
    const bool is_current = prefix.in_file.starts_with(model_prefix) || prefix.in_file == "lm_head.";
    if (!is_current || !name.starts_with(prefix.in_parts)) continue;
    std::string out = prefix.in_file + name.substr(prefix.in_parts.size());
    if (out.starts_with(tower) && std::string_view(out).substr(tower.size()).starts_with(level))
      out.erase(tower.size(), level.size());
    return fvlm::in_transformers(std::move(out));
  }
  throw Error(ErrorKind::internal, "there is no name for it in transformers").at(name);
}

std::vector<std::string> WholeNames::in_directory(const std::string& name) const {
  std::vector<std::string> out;
  for (const bool without_head : {false, true}) // an adapter of transformers' model without its output head
    for (const WholeModelFamily::Prefix& prefix : family_->names) {
      std::string_view in_file = prefix.in_file;
      if (without_head && !in_file.starts_with(model_prefix)) continue;
      if (without_head) in_file.remove_prefix(model_prefix.size());
      if (name.starts_with(in_file)) out.push_back(prefix.in_parts + name.substr(in_file.size()));
    }
  return out;
}

WholeAdapter divide(const PeftFolder& source, const ModelDirectory& base) {
  return Divider(source, base).run();
}

TensorView MergedWeight::view() const {
  return {{name, DType::f32, shape}, std::as_bytes(std::span(values))};
}

namespace {

// The row's direction scaled to DoRA's magnitude.
void set_norm(std::span<float> row, float norm) {
  double square = 0;
  for (const float each : row) square += static_cast<double>(each) * each;
  const auto factor = static_cast<float>(norm / std::max(std::sqrt(square), 1e-15));
  for (float& each : row) each *= factor;
}

MergedWeight merged(const Parameter& weight, const AdaptedModule& adapter, const TensorView& a, const TensorView& b,
                    const TensorView* magnitude) {
  const auto rows = static_cast<size_t>(weight.spec->shape[0]), cols = static_cast<size_t>(weight.spec->shape[1]),
             rank = static_cast<size_t>(adapter.rank);
  const std::vector<float> of_a = numbers_of(a), of_b = numbers_of(b),
                           norms = magnitude ? numbers_of(*magnitude) : std::vector<float>();
  MergedWeight out{weight.name, numbers_of(*weight.view), weight.spec->shape};
  for (size_t row = 0; row < rows; ++row) {
    const std::span<float> values(out.values.data() + row * cols, cols);
    for (size_t i = 0; i < rank; ++i) {
      const auto factor = static_cast<float>(adapter.scale() * of_b[row * rank + i]);
      for (size_t col = 0; col < cols; ++col) values[col] += factor * of_a[i * cols + col];
    }
    if (magnitude) set_norm(values, norms[row]);
  }
  return out;
}

} // namespace

std::vector<MergedWeight> merged_weights(const PeftFolder& source, const std::vector<PeftTensor>& tensors,
                                         const ModelDirectory& base, const std::string& part) {
  const auto tensor = [&](const std::string& name, const std::vector<int64_t>& shape) -> const TensorView& {
    for (const PeftTensor& each : tensors)
      if (each.view.name == name && each.view.shape == shape) return each.view;
    throw Error(ErrorKind::data, "the adapter has no {} of shape {} for the {}", shown(name), shape_text(shape), part)
        .at(source.file.path().string())
        .advise("name the base that it was trained on");
  };
  std::map<std::string, std::string> modules; // as the folder calls them
  for (const PeftTensor& each : tensors)
    if (is_lora(each.view.name)) modules.emplace(owner_of(each.view.name), each.module);
  std::vector<MergedWeight> out;
  for (const auto& [module, in_folder] : modules) {
    const AdaptedModule adapter = source.settings.module(in_folder);
    const Parameter& weight = base.at(part + "." + module + ".weight");
    if (weight.scheme)
      throw Error(ErrorKind::data, "the adapter is for {}, whose weight is quantized", shown(weight.name))
          .at(base.path().string())
          .advise("import the adapter on the model that was quantized, or quantize with --skip '{}.*'", part);
    const auto& shape = weight.spec->shape;
    const TensorView* magnitude = source.settings.dora ? &tensor(magnitude_of(module), {shape[0]}) : nullptr;
    out.push_back(merged(weight, adapter, tensor(lora_a_of(module), {adapter.rank, shape[1]}),
                         tensor(lora_b_of(module), {shape[0], adapter.rank}), magnitude));
  }
  return out;
}

} // namespace fvlm
