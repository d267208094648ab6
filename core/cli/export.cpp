// fvlm-engine export: writes a model directory or checkpoint as a model directory of another dtype.
#include "base/interrupt.h"
#include "cli/options.h"
#include "cli/progress.h"
#include "cli/transfer.h"
#include "model/weights/resolve_model.h"

namespace fvlm::cli {

int run_export(Arguments arguments) {
  Options options(
      "export MODEL --out DIR --dtype bf16|fp16|fp32 [--json]",
      "Convert a model directory or checkpoint to a new model directory, every number rounded to the nearest.\n"
      "transformers loads its folders vision and decoder.",
      "export runs/fvlm-135m/prefer/step-002593 --out models/fvlm-135m --dtype bf16");
  options.positional("MODEL", "a model directory, a checkpoint, or a run folder (its newest checkpoint)")
      .required_value("out", "DIR", "the new model directory; must not exist yet, parent folders are created")
      .required_value("dtype", "bf16|fp16|fp32", "dtype of the weights")
      .flag("json", "print one JSON document on standard output");
  auto parsed = options.parse(arguments);
  if (!parsed) return 0;
  std::string out = *parsed->value("out");
  DType dtype = dtype_of_option(*parsed->value("dtype"));
  const auto model = resolve_model(*parsed->value("MODEL"));
  TransferReport report;
  {
    const InterruptibleWrites interruptible;
    Progress progress("writing " + out);
    report = export_model(model, out, dtype, [&](uint64_t done, uint64_t total) { progress.bytes(done, total); });
  }
  print_transfer(report, out, parsed->flag("json"));
  return 0;
}

} // namespace fvlm::cli
