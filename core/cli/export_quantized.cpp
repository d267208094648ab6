// fvlm-engine export --quantize: writes a model directory whose linear weights are stored in few bits.
#include "base/error.h"
#include "base/interrupt.h"
#include "base/log.h"
#include "budget/parameter_groups.h"
#include "cli/execution_options.h"
#include "cli/named_model.h"
#include "cli/plugin_options.h"
#include "cli/progress.h"
#include "cli/recipe_options.h"
#include "cli/tensor_module.h"
#include "cli/transfer.h"
#include "model/loading.h"
#include "model/weights/model_directory.h"
#include "model/weights/packed_weight.h"
#include "quantize/quantize_model.h"
#include "quantize/weight_schemes.h"

#include <algorithm>

namespace fvlm::cli {
namespace {

// Of a model that a quantization_aware stage has trained, its recipe's quantization. Without --skip, what it skips
// stays as it is.
std::optional<plan::Quantization> trained_quantization(const std::filesystem::path& model) {
  const auto trained = plan_of_checkpoint(model);
  if (!trained || !stage_named(trained->plan, trained->stage).quantization_aware) return {};
  return trained->plan.quantization;
}

plan::Quantization quantization_of(const ParsedOptions& parsed, const std::filesystem::path& model) {
  plan::Quantization quantization{packed_scheme(*parsed.value("quantize")).name, parsed.values("skip")};
  if (const auto activations = parsed.value("activations")) {
    if (*activations != "int8" || quantization.scheme == "int4")
      throw Error(ErrorKind::usage, "--activations {} with weights in {}: only int8 with int8 is supported",
                  *activations, quantization.scheme);
    quantization.scheme = "w8a8";
  }
  const auto trained = trained_quantization(model);
  if (trained && trained->scheme != quantization.scheme)
    log_warning("the stage was trained for {}, and its weights are stored in {}", trained->scheme, quantization.scheme);
  const auto skips_head = [](const std::string& pattern) {
    return budget::is_skipped(pattern, "decoder.lm_head.weight");
  };
  if (const auto head = parsed.value("head")) {
    quantization.head = quantize::head_scheme(*head);
    if (std::ranges::any_of(quantization.skip, skips_head))
      throw Error(ErrorKind::usage, "--head {} quantizes the output head, which --skip leaves as it is", *head);
  }
  if (quantization.skip.empty()) quantization.skip = trained ? trained->skip : std::vector<std::string>{"connector.*"};
  if (!quantization.head.empty()) std::erase_if(quantization.skip, skips_head); // of the stage
  return quantization;
}

quantize::Calibration calibration_of(const ParsedOptions& parsed, const std::filesystem::path& folder,
                                     Registry& registry) {
  const auto recipe = parsed.value("calibrate");
  if (!recipe) return {};
  const int64_t samples = parsed.integer_or("calibration-samples", 256, 1);
  const auto resolved = recipe::resolve(recipe_request(parsed, *recipe));
  const model::Execution execution = execution_of(parsed);
  ops::Operations operations(registry, execution.operations());
  const ModelDirectory directory = ModelDirectory::open(folder);
  const auto loaded = model::load_model(directory, execution.arena(false));
  Progress progress("calibrating");
  return quantize::calibrate(resolved.plan, directory.description().stage, samples, *loaded, operations, registry,
                             [&](int64_t done, int64_t all) { progress.steps("samples", done, all); });
}

} // namespace

int export_quantized_model(Arguments arguments) {
  const auto parsed = export_options().parse(arguments);
  if (parsed->flag("huggingface"))
    throw Error(ErrorKind::usage, "--quantize excludes --huggingface")
        .advise("quantize to a model directory, then export that one with --huggingface");
  const std::string out = *parsed->value("out");
  quantize::QuantizeRequest request;
  request.model = model_named(*parsed->value("MODEL"));
  request.out = out;
  request.quantization = quantization_of(*parsed, request.model);
  budget::require_matches(parsed->values("skip"),
                          budget::parameter_names(ModelDirectory::open(request.model).description()), ErrorKind::usage,
                          "--skip");
  request.dtype = dtype_option(*parsed);
  const auto registry = open_registry(*parsed);
  initialize_device("cpu");
  request.calibration = calibration_of(*parsed, request.model, *registry);
  TransferReport report;
  {
    const InterruptibleWrites interruptible;
    Progress progress("writing " + out);
    report = quantize::quantize_model(request, *registry,
                                      [&](uint64_t done, uint64_t total) { progress.bytes(done, total); });
    keep_plan(request.model, out);
  }
  print_transfer(report, out, parsed->flag("json"));
  return 0;
}

} // namespace fvlm::cli
