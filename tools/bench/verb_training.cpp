#include "bench/verb_training.h"

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
  if (name == "fp8") return plan::Precision::fp8;
  if (name == "fp16") return plan::Precision::fp16;
  if (name == "tf32") return plan::Precision::tf32;
  if (name == "fp32") return plan::Precision::fp32;
  throw Error(ErrorKind::usage, "--precision: expected bf16, fp8, fp16, tf32 or fp32, got '{}'", name);
}

// The switches of a recipe's `speed` that --without can turn off.
constexpr std::pair<std::string_view, bool plan::Speed::*> speed_switches[] = {
    {"coarse_in_tower", &plan::Speed::coarse_in_tower},
    {"skip_last_patches", &plan::Speed::skip_last_patches},
    {"fold_layer_scale", &plan::Speed::fold_layer_scale},
    {"loss_tokens_only", &plan::Speed::loss_tokens_only},
    {"joint_weight_gradients", &plan::Speed::joint_weight_gradients},
    {"shared_preference_frames", &plan::Speed::shared_preference_frames},
    {"shared_repeated_frames", &plan::Speed::shared_repeated_frames},
    {"text_without_tower", &plan::Speed::text_without_tower},
};

void switch_off(const std::string& name, plan::Speed& speed) {
  for (const auto& [known, which] : speed_switches)
    if (name == known) {
      speed.*which = false;
      return;
    }
  std::vector<std::string_view> names;
  for (const auto& [known, which] : speed_switches) names.push_back(known);
  throw Error(ErrorKind::usage, "--without: unknown switch '{}'", name).advise("use one of {}", fmt::join(names, ", "));
}

} // namespace

Options& with_training_options(Options& options) {
  return with_plugin_options(options)
      .value("device", "cpu|cuda", "cpu or cuda; default: cuda where there is one")
      .value("precision", "P", "bf16 (default), fp8, fp16, tf32 or fp32")
      .flag("bf16-moments", "store the optimizer's moments in bf16 instead of float32")
      .flag("bf16-gradients", "store gradients in bf16 instead of float32")
      .flag("deterministic", "use kernels with bitwise reproducible results")
      .flag("eager", "run without CUDA graphs")
      .flag("no-overlap", "do not prepare and copy the next pack during a step")
      .value("without", "NAMES", "turn off these switches of a recipe's `speed`")
      .value("kernels", "NAMES", "plugins to use, in order of preference")
      .flag("json", "print one JSON document on standard output");
}

void read_training_options(const ParsedOptions& parsed, bench::TrainingSetting& setting) {
  setting.device = parsed.value_or("device", default_device());
  setting.precision = precision_named(parsed.value_or("precision", "bf16"));
  if (parsed.flag("bf16-moments")) setting.moments = plan::Moments::bf16;
  if (parsed.flag("bf16-gradients")) setting.gradients = plan::Gradients::bf16;
  setting.deterministic = parsed.flag("deterministic");
  setting.speed.graphs = !parsed.flag("eager");
  setting.speed.overlap_copies = !parsed.flag("no-overlap");
  if (const auto names = parsed.value("without"))
    for (const std::string& name : split(*names, ',')) switch_off(name, setting.speed);
  if (const auto names = parsed.value("kernels")) setting.kernels = split(*names, ',');
  initialize_device(setting.device);
}

} // namespace fvlm::cli
