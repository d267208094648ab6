// fvlm-engine lora: adapters in and out of model directories, and added to their base.
#include "base/interrupt.h"
#include "base/text.h"
#include "cli/progress.h"
#include "cli/recipe_options.h"
#include "cli/tensor_module.h"
#include "cli/transfer.h"
#include "model/merge.h"
#include "model/weights/adapter_transfer.h"
#include "model/weights/resolve_model.h"

#include <c10/core/InferenceMode.h>
#include <fmt/format.h>

namespace fvlm::cli {
namespace {

int lora_merge(Arguments arguments) {
  Options options("lora merge MODEL --out DIR [--dtype bf16|fp16|fp32] [--json]",
                  "Add the adapters of a checkpoint to the weights below them, and write a model directory that needs\n"
                  "neither. Quantized weights become plain ones.",
                  "lora merge runs/assistant --out models/assistant");
  options.positional("MODEL", "a checkpoint with adapters, or a run folder (its newest checkpoint)")
      .required_value("out", "DIR", "the new model directory; must not exist yet")
      .value("dtype", "bf16|fp16|fp32", "dtype of the weights; default: that of the base")
      .flag("json", "print one JSON document on standard output");
  const auto parsed = options.parse(arguments);
  if (!parsed) return 0;
  const auto dtype = dtype_option(*parsed);
  const std::string out = *parsed->value("out");
  const auto model = resolve_model(*parsed->value("MODEL"));
  initialize_device("cpu");
  const c10::InferenceMode without_autograd;
  TransferReport report;
  {
    const InterruptibleWrites interruptible;
    Progress progress("writing " + out);
    report =
        model::merge_adapters(model, out, dtype, [&](uint64_t done, uint64_t total) { progress.bytes(done, total); });
    keep_plan(model, out);
  }
  print_transfer(report, out, parsed->flag("json"));
  return 0;
}

int lora_export(Arguments arguments) {
  Options options(
      "lora export MODEL --out DIR [--part NAME] [--base NAME]",
      "Write the adapters of a checkpoint as a folder that the library PEFT loads: adapter_config.json and\n"
      "adapter_model.safetensors. Of a model that was imported from one Hugging Face folder they are for\n"
      "that whole model, with what else was trained as modules_to_save.",
      "lora export runs/assistant --base Qwen/Qwen2.5-VL-3B-Instruct --out adapters/assistant");
  options.positional("MODEL", "a checkpoint with adapters, or a run folder (its newest checkpoint)")
      .required_value("out", "DIR", "the new folder; must not exist yet")
      .value("part", "NAME", "only the adapter of this part, for the part by itself: vision, decoder, decoder2")
      .value("base", "NAME",
             "what adapter_config.json calls the base model; default: the folder of the weights below, of a whole "
             "model none");
  const auto parsed = options.parse(arguments);
  if (!parsed) return 0;
  const InterruptibleWrites interruptible;
  export_adapter({.model = resolve_model(*parsed->value("MODEL")),
                  .out = *parsed->value("out"),
                  .part = parsed->value("part"),
                  .base = parsed->value("base")});
  fmt::print("{}\n", *parsed->value("out"));
  return 0;
}

int lora_import(Arguments arguments) {
  Options options("lora import ADAPTER --base MODEL --out DIR [--part NAME]",
                  "Make a model directory of a PEFT adapter and the model that it is for. The weights of adapted\n"
                  "parts stay where they are; every verb that runs a model reads the result, and training starts from\n"
                  "it with a recipe that has the same adapters.",
                  "lora import adapters/assistant --base models/fvlm-135m --out models/assistant");
  options.positional("ADAPTER", "a folder with adapter_config.json and adapter_model.safetensors")
      .required_value("base", "MODEL", "a model directory without adapters")
      .required_value("out", "DIR", "the new model directory; must not exist yet")
      .value("part", "NAME", "the part that it is for by itself; default: the whole model, or its decoder");
  const auto parsed = options.parse(arguments);
  if (!parsed) return 0;
  const InterruptibleWrites interruptible;
  const auto idle = import_adapter({.peft = *parsed->value("ADAPTER"),
                                    .base = resolve_model(*parsed->value("base")),
                                    .out = *parsed->value("out"),
                                    .part = parsed->value("part")});
  if (!idle.empty())
    fmt::print(stderr, "left out adapters that add nothing (B is zero), of modules that cannot have any here: {}\n",
               join(idle, ", "));
  fmt::print("{}\n", *parsed->value("out"));
  return 0;
}

constexpr Verb verbs[] = {
    {"merge", "add a checkpoint's adapters to their base", lora_merge},
    {"export", "write a checkpoint's adapter in PEFT's form", lora_export},
    {"import", "make a model directory of a PEFT adapter and its base", lora_import},
};

} // namespace

int manage_adapters(Arguments arguments) {
  return run_group("lora", "Merge, export and import low-rank adapters.", verbs, arguments);
}

} // namespace fvlm::cli
