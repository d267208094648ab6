#include "train/reference_weights.h"

#include "base/error.h"
#include "base/log.h"
#include "model/loading.h"
#include "train/checkpoint.h"
#include "train/reference_logprob_cache.h"

#include <ATen/core/Tensor.h>
#include <fmt/format.h>

#include <algorithm>
#include <functional>

namespace fvlm::train {

namespace fs = std::filesystem;

ReferenceWeights::ReferenceWeights(const fs::path& run, const plan::Stage& stage)
    : stage_(stage.name), file_(run / stage.name / "reference.safetensors"), earlier_(run / stage.from) {}

void ReferenceWeights::keep(const model::Parameters& parameters) const {
  std::map<std::string, at::Tensor> tensors;
  for (const ops::Parameter& parameter : parameters.all())
    if (!parameter.in_base) tensors[directory_name(parameter.name)] = parameter.value.cpu();
  try {
    std::error_code ignored; // the file's own error says more
    fs::create_directories(file_.parent_path(), ignored);
    model::write_tensors(file_, tensors);
  } catch (const Error& error) {
    log_warning("stage {}: the weights of its reference are not kept, so that resuming it needs the checkpoint that it "
                "starts from: {}",
                stage_, error.text());
  }
}

bool ReferenceWeights::restore(model::Model& model, const std::string& fingerprint) const {
  return restore_copy(model, fingerprint) || restore_checkpoint(model, fingerprint);
}

bool ReferenceWeights::restore_copy(model::Model& model, const std::string& wanted) const {
  if (!fs::exists(file_)) return false; // a run of an earlier version
  try {
    const auto file = Safetensors::open(file_);
    for (ops::Parameter& parameter : model.parameters().all()) {
      if (parameter.in_base) continue;
      const TensorView& view = file.at(directory_name(parameter.name));
      if (view.shape != parameter.value.sizes().vec()) return false;
      parameter.value.copy_(model::tensor_over(view));
    }
    if (fingerprint(model.parameters()) == wanted) return true;
    log_warning("{}: these are not the weights that the stage began with", file_.string());
  } catch (const Error& error) {
    log_warning("{}", error.text());
  }
  return false;
}

bool ReferenceWeights::restore_checkpoint(model::Model& model, const std::string& wanted) const {
  std::vector<fs::path> folders;
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator(earlier_, ignored))
    if (!entry.is_symlink() && entry.path().filename().string().starts_with("step-")) folders.push_back(entry.path());
  std::ranges::sort(folders, std::greater());
  for (const fs::path& folder : folders) try {
      model::load_weights(ModelDirectory::open(folder), model,
                          [](const ops::Parameter& parameter) { return !parameter.in_base; });
      if (fingerprint(model.parameters()) != wanted) continue;
      log_info("stage {}: its reference is made from {}", stage_, folder.string());
      return true;
    } catch (const Error&) { // another one may have them
    }
  return false;
}

std::string ReferenceWeights::advice() const {
  if (const auto step = StageFolder(earlier_).newest())
    return fmt::format("put the file back from a copy; or --resume {} trains from there again",
                       StageFolder(earlier_).of(*step).string());
  return "put the file back from a copy; or train into another folder: --run-dir";
}

} // namespace fvlm::train
