#include "cli/bench_training.h"

#include "base/error.h"
#include "base/text.h"
#include "cli/plugin_options.h"
#include "cli/tensor_module.h"

#include <fmt/format.h>

namespace fvlm::cli {
namespace {

plan::Precision precision_named(const std::string& name) {
  if (name == "bf16") return plan::Precision::bf16;
  if (name == "fp16") return plan::Precision::fp16;
  if (name == "tf32") return plan::Precision::tf32;
  if (name == "fp32") return plan::Precision::fp32;
  throw Error(ErrorKind::usage, fmt::format("--precision wants bf16, fp16, tf32 or fp32, not '{}'", name));
}

} // namespace

Options& with_training_options(Options& options) {
  return with_plugin_options(options)
      .value("device", "NAME", "cpu or cuda; default: cuda where there is one")
      .value("precision", "P", "bf16 (default), fp16, tf32 or fp32")
      .flag("bf16-moments", "the optimizer's moments in bf16, not in float32")
      .flag("deterministic", "kernels that give the same bits each time")
      .flag("eager", "operation by operation, without recordings")
      .flag("no-overlap", "a pack is prepared and copied when the step before is done")
      .value("kernels", "NAMES", "plugins to use, in order of preference")
      .flag("json", "one JSON document on standard output");
}

void read_training_options(const ParsedOptions& parsed, bench::TrainingSetting& setting) {
  setting.device = parsed.value_or("device", best_device());
  setting.precision = precision_named(parsed.value_or("precision", "bf16"));
  if (parsed.flag("bf16-moments")) setting.moments = plan::Moments::bf16;
  setting.deterministic = parsed.flag("deterministic");
  setting.graphs = !parsed.flag("eager");
  setting.overlap = !parsed.flag("no-overlap");
  if (const auto names = parsed.value("kernels")) setting.kernels = split(*names, ',');
  use_device(setting.device);
}

} // namespace fvlm::cli
