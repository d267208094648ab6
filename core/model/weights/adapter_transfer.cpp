#include "model/weights/adapter_transfer.h"

#include "base/atomic_file.h"
#include "base/error.h"
#include "base/file.h"
#include "base/new_file.h"
#include "base/text.h"
#include "model/weights/attached_adapter.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>

namespace fvlm {

namespace fs = std::filesystem;

std::vector<std::string> import_adapter(const AdapterImport& request) {
  const AdapterReader reader(ModelDirectory::open(request.base));
  AttachedAdapter adapter = reader.read_peft(request.peft, request.part);
  std::map<std::string, TensorView> views;
  for (const Parameter& parameter : reader.base().parameters())
    for (const auto& [name, view] : stored_tensors(parameter)) views[name] = *view;
  for (const auto& [name, view] : adapter.tensors) views[name] = view;
  adapter.description.seal_bases();
  ModelDirectoryWriter writer(
      request.out, adapter.description, [&](const std::string& name) { return views.at(name).dtype; },
      reader.base().schemes());
  for (const TensorInfo& tensor : writer.order()) writer.append(views.at(tensor.name).data);
  writer.commit();
  return std::move(adapter.idle);
}

namespace {

// A PEFT folder as it is put together.
struct Export {
  PeftConfig config;
  std::vector<TensorView> tensors;

  // PEFT reads a tied output head beside the embedding. `peft_name`: of a tensor of the part.
  template <class PeftName>
  void tie_head(const PartAdapter& adapter, const WeightLayout& part, const PeftName& peft_name) {
    if (part.tied_to.empty() || !adapter.saves(part.tied_to)) return;
    config.ties_weights = true;
    tensors.emplace_back(adapter.weights->at(part.tied_to)).name = peft_name(part.tied_copy);
  }

  void write(const fs::path& out) const {
    AtomicFolder folder(out);
    SafetensorsWriter writer(folder.temporary_path() / PartAdapter::weights_file, {tensors.begin(), tensors.end()});
    for (const TensorInfo& tensor : writer.order())
      writer.append(std::ranges::find(tensors, tensor.name, &TensorView::name)->data);
    writer.commit();
    write_file_atomic(folder.temporary_path() / PartAdapter::config_file, config.json().dump(2) + "\n");
    folder.commit();
  }
};

const ModelPart& exported_part(const ModelDirectory& directory, const std::optional<std::string>& part) {
  std::vector<std::string> names;
  const ModelPart* found = nullptr;
  for (const ModelPart& each : directory.description().parts) {
    if (!each.adapter) continue;
    names.push_back(each.name);
    if (!part || each.name == *part) found = &each;
  }
  if (!found || (!part && names.size() > 1))
    throw Error(ErrorKind::data, names.empty() ? "the model has no adapters"
                                 : part        ? fmt::format("the part '{}' has no adapter", *part)
                                               : "several parts of the model have adapters")
        .at(directory.path().string())
        .advise(names.empty() ? "a run whose model has `adapters` writes checkpoints with some"
                              : "--part names one of " + join(names, ", "));
  return *found;
}

// Whether a module is another or in it.
bool is_in(const std::string& module, const std::string& other) {
  return module == other || module.starts_with(other + ".");
}

class WholeExport {
 public:
  WholeExport(const ModelDirectory& directory, const WholeNames& names) : directory_(directory), names_(names) {}

  Export run() {
    for (const ModelPart& part : directory_.description().parts) {
      if (part.adapter)
        add_adapter(part);
      else
        add_changes(part);
    }
    return std::move(out_);
  }

 private:
  // Of a tensor of the model directory.
  std::string peft_name(const std::string& name) const {
    return std::string(PeftFolder::prefix) + names_.in_transformers(name);
  }

  void add(const std::string& name, const TensorView& view) { out_.tensors.emplace_back(view).name = peft_name(name); }

  void add_adapter(const ModelPart& part) {
    const PartAdapter& adapter = *part.adapter;
    PeftConfig& config = out_.config;
    if (!config.modules.empty() && config.dora != adapter.dora)
      throw Error(ErrorKind::data, "one part of the model has DoRA and another LoRA, and PEFT has one of them")
          .at(directory_.path().string())
          .advise("export each part with --part, or the whole model with `lora merge` and `export --huggingface`");
    config.dora = adapter.dora;
    config.dropout = std::max(config.dropout, adapter.dropout); // PEFT has one
    const WeightLayout layout = directory_.description().layout(part);
    const std::string prefix = part.name + ".";
    for (const TensorSpec& spec : layout.tensors) {
      if (spec.shape.size() != 2) continue;
      const std::string module = module_of(names_.in_transformers(prefix + spec.name));
      if (const AdaptedModule* adapted = adapter.find(module_of(spec.name)))
        config.modules.push_back({module, adapted->rank, adapted->alpha});
      else
        config.other_linears.push_back(module);
    }
    for (const std::string& name : adapter.saved) save_module(prefix + name);
    for (const TensorView& view : adapter.weights->tensors()) add(prefix + view.name, view);
    out_.tie_head(adapter, layout, [&](const std::string& name) { return peft_name(prefix + name); });
  }

  // `parameter` is of a module that trains whole.
  void save_module(const std::string& parameter) {
    const std::string name = names_.in_transformers(parameter), owner = name.substr(0, name.rfind('.'));
    std::vector<std::string>& saved = out_.config.saved;
    if (std::ranges::any_of(saved, [&](const std::string& other) { return is_in(owner, other); })) return;
    std::erase_if(saved, [&](const std::string& other) { return is_in(other, owner); });
    saved.push_back(owner);
  }

  // What training changed in a part that has no adapters.
  void add_changes(const ModelPart& part) {
    const std::string prefix = part.name + ".";
    if (part.role() == Role::decoder) require_unchanged(prefix);
    const std::vector<std::string> of_others = out_.config.saved;
    for (const Parameter& parameter : directory_.parameters())
      if (parameter.name.starts_with(prefix) && has_changed(parameter)) save_module(parameter.name);
    for (const std::string& module : out_.config.saved) {
      if (std::ranges::find(of_others, module) != of_others.end()) continue;
      for (const Parameter& parameter : directory_.parameters()) {
        if (parameter.of_adapter || !is_in(names_.in_transformers(parameter.name), module)) continue;
        if (!parameter.name.starts_with(prefix)) refuse(module);
        add(parameter.name, *parameter.view);
      }
    }
  }

  void require_unchanged(const std::string& prefix) {
    for (const Parameter& parameter : directory_.parameters())
      if (parameter.name.starts_with(prefix) && has_changed(parameter)) refuse(parameter.name);
  }

  [[noreturn]] void refuse(const std::string& changed) const {
    throw Error(ErrorKind::data, "{} was trained beside the adapters, and PEFT cannot save it with them",
                shown(changed))
        .at(directory_.path().string())
        .advise("write the whole model with `lora merge` and `export --huggingface`");
  }

  bool has_changed(const Parameter& parameter) {
    if (!base_) base_ = open_base();
    const Parameter& before = base_->at(parameter.name);
    return parameter.view->dtype != before.view->dtype || parameter.scheme != before.scheme ||
           !std::ranges::equal(parameter.view->data, before.view->data);
  }

  // The model directory that the weights below the adapters are of.
  ModelDirectory open_base() const {
    const auto adapted = std::ranges::find_if(directory_.description().parts,
                                              [](const ModelPart& part) { return part.adapter.has_value(); });
    const fs::path folder = fs::path(adapted->adapter->base.folder).parent_path();
    try {
      return ModelDirectory::open(folder);
    } catch (const Error& error) {
      throw Error(error.kind(), "which weights were trained beside the adapters cannot be told: {}", error.what())
          .at(error.where())
          .advise(
              "put the model directory that the adapters were trained on back to {}, or export one part with --part",
              folder.string());
    }
  }

  const ModelDirectory& directory_;
  const WholeNames& names_;
  std::optional<ModelDirectory> base_;
  Export out_;
};

} // namespace

void export_adapter(const AdapterExport& request) {
  const ModelDirectory directory = ModelDirectory::open(request.model);
  const auto names = WholeNames::of(directory.description());
  Export made;
  if (names && !request.part && directory.description().has_adapters()) {
    made = WholeExport(directory, *names).run();
  } else {
    const ModelPart& part = exported_part(directory, request.part);
    const WeightLayout layout = directory.description().layout(part);
    made.config = peft_config(*part.adapter, layout);
    made.tie_head(*part.adapter, layout, peft_name);
    for (const TensorView& view : part.adapter->weights->tensors())
      made.tensors.emplace_back(view).name = peft_name(view.name);
  }
  if (request.base) made.config.base = *request.base;
  made.write(request.out);
}

} // namespace fvlm
