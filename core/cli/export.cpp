// fvlm-engine export: writes a model directory or checkpoint as a model directory of another dtype, or as the Hugging
// Face folder that it was imported from.
#include "base/error.h"
#include "base/interrupt.h"
#include "cli/options.h"
#include "cli/progress.h"
#include "cli/transfer.h"
#include "model/weights/resolve_model.h"

#include <optional>

namespace fvlm::cli {

int run_export(Arguments arguments) {
  Options options(
      "export MODEL --out DIR (--dtype bf16|fp16|fp32 | --huggingface [--dtype T]) [--json]",
      "Convert a model directory or checkpoint to a new model directory, every number rounded to the nearest.\n"
      "transformers loads its folders vision and decoder. With --huggingface, write what `import --model` read:\n"
      "one folder of a LLaVA, an Idefics3 or a SmolVLM, which transformers loads as a whole.",
      "export runs/fvlm-135m/prefer/step-002593 --out models/fvlm-135m --dtype bf16");
  options.positional("MODEL", "a model directory, a checkpoint, or a run folder (its newest checkpoint)")
      .required_value("out", "DIR", "the new model directory; must not exist yet, parent folders are created")
      .value("dtype", "bf16|fp16|fp32", "dtype of the weights; with --huggingface the default is what they have")
      .flag("huggingface", "write one Hugging Face folder, of the form that the model was imported from")
      .flag("json", "print one JSON document on standard output");
  auto parsed = options.parse(arguments);
  if (!parsed) return 0;
  std::string out = *parsed->value("out");
  std::optional<DType> dtype;
  if (const auto word = parsed->value("dtype"))
    dtype = dtype_of_option(*word);
  else if (!parsed->flag("huggingface"))
    throw Error(ErrorKind::usage, "--dtype is missing: bf16, fp16 or fp32, the dtype of the weights");
  const auto model = resolve_model(*parsed->value("MODEL"));
  TransferReport report;
  {
    const InterruptibleWrites interruptible;
    Progress progress("writing " + out);
    const auto show = [&](uint64_t done, uint64_t total) { progress.bytes(done, total); };
    report = parsed->flag("huggingface") ? export_whole_model(model, out, dtype, show)
                                         : export_model(model, out, *dtype, show);
  }
  print_transfer(report, out, parsed->flag("json"));
  return 0;
}

} // namespace fvlm::cli
