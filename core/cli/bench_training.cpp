#include "cli/bench_training.h"

#include "base/error.h"
#include "base/text.h"
#include "cli/plugin_options.h"
#include "cli/tensor_module.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <utility>

namespace fvlm::cli {
namespace {

plan::Precision precision_named(const std::string& name) {
  if (name == "bf16") return plan::Precision::bf16;
  if (name == "fp16") return plan::Precision::fp16;
  if (name == "tf32") return plan::Precision::tf32;
  if (name == "fp32") return plan::Precision::fp32;
  throw Error(ErrorKind::usage, fmt::format("--precision wants bf16, fp16, tf32 or fp32, not '{}'", name));
}

// Of the work that a recipe's `speed` saves.
constexpr std::pair<std::string_view, bool plan::Speed::*> savings[] = {
    {"coarse_in_tower", &plan::Speed::coarse_in_tower},
    {"skip_last_patches", &plan::Speed::skip_last_patches},
    {"fold_layer_scale", &plan::Speed::fold_layer_scale},
    {"loss_tokens_only", &plan::Speed::loss_tokens_only},
    {"joint_weight_gradients", &plan::Speed::joint_weight_gradients},
    {"shared_preference_frames", &plan::Speed::shared_preference_frames},
    {"text_without_tower", &plan::Speed::text_without_tower},
};

void switch_off(const std::string& name, plan::Speed& speed) {
  for (const auto& [known, which] : savings)
    if (name == known) {
      speed.*which = false;
      return;
    }
  std::vector<std::string_view> names;
  for (const auto& [known, which] : savings) names.push_back(known);
  throw Error(ErrorKind::usage, fmt::format("--without does not know '{}'", name))
      .advise(fmt::format("one of {}", fmt::join(names, ", ")));
}

} // namespace

Options& with_training_options(Options& options) {
  return with_plugin_options(options)
      .value("device", "NAME", "cpu or cuda; default: cuda where there is one")
      .value("precision", "P", "bf16 (default), fp16, tf32 or fp32")
      .flag("bf16-moments", "the optimizer's moments in bf16, not in float32")
      .flag("bf16-gradients", "the parameters' gradients in bf16, not in float32")
      .flag("deterministic", "kernels that give the same bits each time")
      .flag("eager", "operation by operation, without recordings")
      .flag("no-overlap", "a pack is prepared and copied when the step before is done")
      .value("without", "NAMES", "do the work that these switches of a recipe's `speed` save")
      .value("kernels", "NAMES", "plugins to use, in order of preference")
      .flag("json", "one JSON document on standard output");
}

void read_training_options(const ParsedOptions& parsed, bench::TrainingSetting& setting) {
  setting.device = parsed.value_or("device", best_device());
  setting.precision = precision_named(parsed.value_or("precision", "bf16"));
  if (parsed.flag("bf16-moments")) setting.moments = plan::Moments::bf16;
  if (parsed.flag("bf16-gradients")) setting.gradients = plan::Gradients::bf16;
  setting.deterministic = parsed.flag("deterministic");
  setting.speed.graphs = !parsed.flag("eager");
  setting.speed.overlap_copies = !parsed.flag("no-overlap");
  if (const auto names = parsed.value("without"))
    for (const std::string& name : split(*names, ',')) switch_off(name, setting.speed);
  if (const auto names = parsed.value("kernels")) setting.kernels = split(*names, ',');
  use_device(setting.device);
}

} // namespace fvlm::cli
