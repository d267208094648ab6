#include "model/weights/adapter_transfer.h"

#include "base/atomic_file.h"
#include "base/error.h"
#include "base/file.h"
#include "base/new_file.h"
#include "base/text.h"
#include "model/weights/model_directory.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>

namespace fvlm {

namespace fs = std::filesystem;

void import_adapter(const fs::path& peft, const fs::path& base, const std::string& part, const fs::path& out) {
  const ModelDirectory directory = ModelDirectory::open(base);
  directory.require_no_adapters("lora import");
  ModelDescription description = directory.description();
  const auto adapted = std::ranges::find_if(
      description.parts, [&](const ModelPart& each) { return each.name == part && each.role() != Role::connector; });
  if (adapted == description.parts.end()) {
    std::vector<std::string> names;
    for (const ModelPart& each : description.parts)
      if (each.role() != Role::connector) names.push_back(each.name);
    throw Error(ErrorKind::usage, "the model has no part '{}' that can have an adapter", part)
        .at(base.string())
        .advise("--part names one of " + join(names, ", "));
  }
  adapted->adapter = read_adapter(peft, description.layout(*adapted));
  adapted->adapter->base = {fs::weakly_canonical(adapted->folder.path).string(),
                            base_checksum(*adapted->folder.weights)};
  std::map<std::string, const TensorView*> views;
  for (const Parameter& parameter : directory.parameters())
    for (const auto& [name, view] : stored_tensors(parameter)) views[name] = view;
  for (const TensorView& view : adapted->adapter->weights->tensors()) views[part + "." + view.name] = &view;
  ModelDirectoryWriter writer(
      out, description, [&](const std::string& name) { return views.at(name)->dtype; }, directory.schemes());
  for (const TensorInfo& tensor : writer.order()) writer.append(views.at(tensor.name)->data);
  writer.commit();
}

void export_adapter(const fs::path& model, const std::optional<std::string>& part, const fs::path& out) {
  const ModelFile file = ModelFile::read(model);
  std::vector<std::string> names;
  const ModelFile::Part* found = nullptr;
  for (const ModelFile::Part& each : file.parts) {
    if (!each.base) continue;
    names.push_back(each.name);
    if (!part || each.name == *part) found = &each;
  }
  if (!found || (!part && names.size() > 1))
    throw Error(ErrorKind::data, names.empty() ? "the model has no adapters"
                                 : part        ? fmt::format("the part '{}' has no adapter", *part)
                                               : "several parts of the model have adapters")
        .at(model.string())
        .advise(names.empty() ? "a run whose model has `adapters` writes checkpoints with some"
                              : "--part names one of " + join(names, ", "));
  AtomicFolder folder(out);
  for (const char* name : {PartAdapter::config_file, PartAdapter::weights_file})
    write_file_atomic(folder.temporary_path() / name, MappedFile::open(model / found->location / name)->text());
  folder.commit();
}

} // namespace fvlm
