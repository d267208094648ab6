// fvlm-engine import: makes a model directory from two Hugging Face folders and a connector.
#include "base/error.h"
#include "base/interrupt.h"
#include "cli/options.h"
#include "cli/progress.h"
#include "cli/transfer.h"
#include "data/tokenizer.h"
#include "model/connector/foveated/settings.h"

#include <fmt/format.h>

namespace fvlm::cli {
namespace {

int64_t integer_in_range(const ParsedOptions& parsed, const char* name, int64_t min, int64_t max, int64_t value) {
  int64_t number = parsed.integer_or(name, value);
  if (number < min || number > max)
    throw Error(ErrorKind::usage, fmt::format("--{}: expected {} to {}, got {}", name, min, max, number));
  return number;
}

// "a" of "models/a/".
std::string last_name(const std::string& folder) {
  auto path = std::filesystem::absolute(folder).lexically_normal();
  return (path.has_filename() ? path : path.parent_path()).filename().string();
}

// Nothing that trains, evaluates or answers can do without it.
void require_tokenizer(const std::filesystem::path& decoder) {
  const auto file = decoder / "tokenizer.json";
  std::error_code ignored;
  if (!std::filesystem::exists(file, ignored))
    throw Error(ErrorKind::data, "the decoder has no tokenizer.json")
        .at(decoder.string())
        .advise("copy the tokenizer.json of the decoder's model into this folder; older formats such as vocab.json and "
                "tokenizer.model are not read: save them with transformers, which writes a tokenizer.json");
  Tokenizer::from_file(file);
}

} // namespace

int run_import(Arguments arguments) {
  Options options(
      "import --vision DIR --decoder DIR [--connector FILE] [--seed N] --out DIR [--dtype T] [--json]",
      "Make a model directory from a vision tower and a decoder, each a Hugging Face folder with config.json and\n"
      "model.safetensors (or shards). The connector is initialized from the seed, or read from --connector.",
      "import --vision weights/dinov2-small --decoder weights/SmolLM2-135M-Instruct --out models/fvlm-135m");
  options.required_value("vision", "DIR", "the vision tower: a folder of DINOv2, CLIP or SigLIP")
      .required_value("decoder", "DIR", "the language model: a folder of the Llama family, with its tokenizer.json")
      .value("connector", "FILE", "use the connector.safetensors of another model")
      .required_value("out", "DIR", "the new model directory; must not exist yet, parent folders are created")
      .value("seed", "N", "seed of a new connector; default 42")
      .value("query-dim", "N", "features of a query, for a new connector; default 384")
      .value("visual-scale", "X", "factor on every visual token; default 0.14")
      .flag("shallow", "let queries attend to the last layer of the tower alone (an ablation)")
      .value("dtype", "fp32|bf16|fp16", "dtype of the weights; default: the towers keep theirs")
      .value("name", "NAME", "the model's name; default: the folder name of --out")
      .flag("json", "print one JSON document on standard output");
  auto parsed = options.parse(arguments);
  if (!parsed) return 0;

  ImportRequest request;
  request.vision = *parsed->value("vision");
  request.decoder = *parsed->value("decoder");
  std::string out = *parsed->value("out");
  request.out = out;
  if (auto file = parsed->value("connector")) {
    if (parsed->value("query-dim") || parsed->value("seed"))
      throw Error(ErrorKind::usage,
                  "--connector excludes --query-dim and --seed: the file has its own query_dim and weights")
          .advise("leave out --query-dim and --seed");
    request.connector = *file;
  }
  request.seed = static_cast<uint64_t>(integer_in_range(*parsed, "seed", 0, INT64_MAX, 42));
  connector::Foveated connector;
  connector.query_dim = integer_in_range(*parsed, "query-dim", 1, 1 << 20, connector.query_dim);
  double& visual_scale = connector.visual_scale;
  visual_scale = parsed->number_or("visual-scale", visual_scale);
  if (!(visual_scale >= 1e-12 && visual_scale <= 1e12))
    throw Error(ErrorKind::usage,
                fmt::format("--visual-scale: expected a number above 0 (1e-12 to 1e12), got {:g}", visual_scale));
  if (parsed->flag("shallow")) connector.attend = connector::Attend::shallow;
  request.connector_config = connector;
  if (auto dtype = parsed->value("dtype")) request.dtype = dtype_of_option(*dtype);
  request.name = parsed->value_or("name", last_name(out));

  request.check_before_writing = [&] { require_tokenizer(request.decoder); };

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
