// fvlm-engine import: two Hugging Face folders and a connector become a model directory.
#include "base/error.h"
#include "base/interrupt.h"
#include "cli/options.h"
#include "cli/progress.h"
#include "cli/transfer.h"

#include <fmt/format.h>

namespace fvlm::cli {
namespace {

int64_t within(const ParsedOptions& parsed, const char* name, int64_t least, int64_t most, int64_t fallback) {
  int64_t number = parsed.integer_or(name, fallback);
  if (number < least || number > most)
    throw Error(ErrorKind::usage, fmt::format("--{} wants {} to {}, not {}", name, least, most, number));
  return number;
}

// "a" of "models/a/".
std::string last_name(const std::string& folder) {
  auto path = std::filesystem::absolute(folder).lexically_normal();
  return (path.has_filename() ? path : path.parent_path()).filename().string();
}

} // namespace

int run_import(Arguments arguments) {
  Options options(
      "import --vision DIR --decoder DIR [--connector FILE] [--seed N] --out DIR [--dtype T] [--json]",
      "Makes a model directory out of a vision tower and a decoder, each a Hugging Face folder with config.json and\n"
      "model.safetensors (or shards). The connector is fresh, the same for the same seed, unless a file brings one.",
      "import --vision weights/dinov2-small --decoder weights/SmolLM2-135M-Instruct --out models/fvlm-135m");
  options.needed("vision", "DIR", "the vision tower: a DINOv2 folder")
      .needed("decoder", "DIR", "the language model: a folder of the Llama family, with its tokenizer")
      .value("connector", "FILE", "connector.safetensors of another model, in place of a fresh one")
      .needed("out", "DIR", "the model directory; there must be nothing yet, folders above it are made")
      .value("seed", "N", "of a fresh connector (42)")
      .value("query-dim", "N", "features of a query, for a fresh connector (384)")
      .value("visual-scale", "X", "factor on every visual token (0.14)")
      .flag("shallow", "queries read the last layer of the tower alone (an ablation)")
      .value("dtype", "fp32|bf16|fp16", "store everything so; without it towers stay as they are")
      .value("name", "NAME", "the model's name; that of --out if not given")
      .flag("json", "one JSON document on standard output");
  auto parsed = options.parse(arguments);
  if (!parsed) return 0;

  ImportRequest request;
  request.vision = *parsed->value("vision");
  request.decoder = *parsed->value("decoder");
  std::string out = *parsed->value("out");
  request.out = out;
  if (auto file = parsed->value("connector")) {
    if (parsed->value("query-dim") || parsed->value("seed"))
      throw Error(ErrorKind::usage, "--connector brings its query_dim and needs no seed")
          .advise("leave out --query-dim and --seed");
    request.connector = *file;
  }
  request.seed = static_cast<uint64_t>(within(*parsed, "seed", 0, INT64_MAX, 42));
  request.connector_config.query_dim = within(*parsed, "query-dim", 1, 1 << 20, request.connector_config.query_dim);
  double& visual_scale = request.connector_config.visual_scale;
  visual_scale = parsed->number_or("visual-scale", visual_scale);
  if (!(visual_scale >= 1e-12 && visual_scale <= 1e12))
    throw Error(ErrorKind::usage, fmt::format("--visual-scale wants a number above 0, not {:g}", visual_scale));
  request.connector_config.shallow = parsed->flag("shallow");
  if (auto dtype = parsed->value("dtype")) request.dtype = dtype_of_option(*dtype);
  request.name = parsed->value_or("name", last_name(out));

  TransferReport report;
  {
    const InterruptibleWrites interruptible;
    Progress progress("writing " + out);
    report = import_model(request, [&](uint64_t done, uint64_t total) { progress.bytes(done, total); });
  }
  print_transfer(report, out, parsed->flag("json"));
  return 0;
}

} // namespace fvlm::cli
