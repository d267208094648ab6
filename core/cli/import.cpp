// fvlm-engine import: makes a model directory from one Hugging Face folder, or from two and a connector.
#include "base/error.h"
#include "base/file.h"
#include "base/interrupt.h"
#include "base/log.h"
#include "base/text.h"
#include "cli/import_checks.h"
#include "cli/options.h"
#include "cli/progress.h"
#include "cli/transfer.h"
#include "model/connector/foveated/settings.h"

#include <fmt/format.h>

namespace fvlm::cli {
namespace {

// "a" of "models/a/".
std::string last_name(const std::string& folder) {
  auto path = std::filesystem::absolute(folder).lexically_normal();
  return (path.has_filename() ? path : path.parent_path()).filename().string();
}

// Those that have something on them.
std::vector<std::string> lines_of(const std::string& file) {
  constexpr uint64_t most = uint64_t{16} << 20;
  std::vector<std::string> lines;
  for (std::string& line : split(read_file(file, most), '\n')) {
    if (line.ends_with('\r')) line.pop_back();
    if (!line.empty()) lines.push_back(std::move(line));
  }
  if (lines.empty()) throw Error(ErrorKind::usage, "--add-tokens: the file has no token on a line").at(file);
  return lines;
}

Options import_options() {
  Options options(
      "import (--model DIR | --vision DIR --decoder DIR [--connector FILE] [--seed N]) --out DIR [--dtype T] [--json]",
      "Make a model directory from a vision tower and a decoder, each a Hugging Face folder with config.json and\n"
      "model.safetensors (or shards), with a connector that is initialized from the seed or read from --connector.\n"
      "Or from one folder that has all three: a LLaVA, LLaVA-NeXT, Granite Vision, LLaVA-OneVision, InternVL,\n"
      "Gemma 3, Gemma 4, PaliGemma, Idefics3, SmolVLM, Qwen2-VL, Qwen2.5-VL, Qwen3-VL, Qwen3.5, Pixtral,\n"
      "Mistral Small 3.1, Ministral 3, LightOnOCR, LFM2-VL, LFM3-VL, MiniCPM-V 4.6 and 4.7, MiniCPM-OCR,\n"
      "PaddleOCR-VL, GLM-OCR, GLM-4.1V, GLM-4.6V, HunyuanOCR, VideoLLaMA 3, Qianfan-OCR, Ovis2, Granite Docling or\n"
      "DeepSeek-VL. Or from the folder of a language model by itself, which then reads text alone. Weights that "
      "others\n"
      "have quantized (fp8, GPTQ, AWQ, bitsandbytes, compressed-tensors) become plain numbers.",
      "import --vision weights/dinov2-small --decoder weights/SmolLM2-135M-Instruct --out models/fvlm-135m");
  options
      .value("model", "DIR",
             "a folder of LLaVA, LLaVA-NeXT, Granite Vision, LLaVA-OneVision, InternVL, Gemma 3, Gemma 4, PaliGemma, "
             "Idefics3, SmolVLM, Qwen2-VL, Qwen2.5-VL, Qwen3-VL, Qwen3.5, Pixtral, Mistral Small 3.1, Ministral 3, "
             "LightOnOCR, LFM2-VL, LFM3-VL, MiniCPM-V 4.6 and 4.7, MiniCPM-OCR, PaddleOCR-VL, GLM-OCR, GLM-4.1V, "
             "GLM-4.6V, HunyuanOCR, VideoLLaMA 3, Qianfan-OCR, Ovis2, Granite Docling or DeepSeek-VL, or of a language "
             "model, with its tokenizer.json")
      .value("vision", "DIR", "the vision tower: a folder of DINOv2, CLIP or SigLIP")
      .value("decoder", "DIR", "the language model: a folder of the Llama family or Gemma 4, with its tokenizer.json")
      .value("connector", "FILE", "use the connector.safetensors of another model")
      .required_value("out", "DIR", "the new model directory; must not exist yet, parent folders are created")
      .value("seed", "N", "seed of a new connector; default 42")
      .value("query-dim", "N", "features of a query, for a new connector; default 384")
      .value("visual-scale", "X", "factor on every visual token; default 0.14")
      .flag("shallow", "let queries attend to the last layer of the tower alone (an ablation)")
      .value("dtype", "fp32|bf16|fp16", "dtype of the weights; default: the towers keep theirs")
      .value(
          "add-tokens", "FILE",
          "a text file with a token on each line, which tokenizer and decoder get, such as <loc_0>; their rows begin "
          "as the mean of the others")
      .value("name", "NAME", "the model's name; default: the folder name of --out")
      .flag("json", "print one JSON document on standard output");
  return options;
}

WholeImportRequest whole_request(const ParsedOptions& parsed) {
  for (const char* other : {"vision", "decoder", "connector", "seed", "query-dim", "visual-scale"})
    if (parsed.value(other))
      throw Error(ErrorKind::usage, "--model excludes --{}: the folder has all parts of a model", other)
          .advise("leave out --{}", other);
  if (parsed.flag("shallow"))
    throw Error(ErrorKind::usage, "--model excludes --shallow: the folder has all parts of a model")
        .advise("leave out --shallow");
  WholeImportRequest request;
  request.model = *parsed.value("model");
  request.check_before_writing = whole_model_check(request.model);
  return request;
}

ImportRequest parts_request(const ParsedOptions& parsed) {
  for (const char* needed : {"vision", "decoder"})
    if (!parsed.value(needed))
      throw Error(ErrorKind::usage, "--{} is missing", needed)
          .advise(
              "name --vision and --decoder, the folders of two models, or --model, the folder of one that has both");
  ImportRequest request;
  request.vision = *parsed.value("vision");
  request.decoder = *parsed.value("decoder");
  if (auto file = parsed.value("connector")) {
    if (parsed.value("query-dim") || parsed.value("seed"))
      throw Error(ErrorKind::usage,
                  "--connector excludes --query-dim and --seed: the file has its own query_dim and weights")
          .advise("leave out --query-dim and --seed");
    request.connector = *file;
  }
  request.seed = static_cast<uint64_t>(parsed.integer_or("seed", 42, 0));
  connector::Foveated connector;
  connector.query_dim = parsed.integer_or("query-dim", connector.query_dim, 1, 1 << 20);
  double& visual_scale = connector.visual_scale;
  visual_scale = parsed.number_or("visual-scale", visual_scale);
  if (!(visual_scale >= 1e-12 && visual_scale <= 1e12))
    throw Error(ErrorKind::usage, "--visual-scale: expected a number above 0 (1e-12 to 1e12), got {:g}", visual_scale);
  if (parsed.flag("shallow")) connector.attend = connector::Attend::shallow;
  request.connector_config = connector;
  request.check_before_writing = [vision = request.vision, decoder = request.decoder](const ModelDescription& model) {
    check_image_processor(vision, model.encoder());
    require_tokenizer(decoder, model.decoder());
  };
  return request;
}

template <class Request>
TransferReport import_as(TransferReport (*import)(const Request&, const TransferProgress&), Request request,
                         const ParsedOptions& parsed) {
  const std::string out = *parsed.value("out");
  request.out = out;
  request.dtype = dtype_option(parsed);
  request.name = parsed.value_or("name", last_name(out));
  if (const auto file = parsed.value("add-tokens")) request.new_tokens = lines_of(*file);
  const InterruptibleWrites interruptible;
  Progress progress("writing " + out);
  return import(request, [&](uint64_t done, uint64_t total) { progress.bytes(done, total); });
}

} // namespace

int run_import(Arguments arguments) {
  const auto parsed = import_options().parse(arguments);
  if (!parsed) return 0;
  const TransferReport report = parsed->value("model") ? import_as(import_whole_model, whole_request(*parsed), *parsed)
                                                       : import_as(import_model, parts_request(*parsed), *parsed);
  print_transfer(report, *parsed->value("out"), parsed->flag("json"));
  return 0;
}

} // namespace fvlm::cli
