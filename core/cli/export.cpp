// fvlm-engine export: writes a model directory or checkpoint as a model directory of another dtype, or as the Hugging
// Face folder that it was imported from, or as GGUF.
#include "gguf/export.h"

#include "base/error.h"
#include "base/interrupt.h"
#include "base/log.h"
#include "base/table.h"
#include "base/text.h"
#include "cli/named_model.h"
#include "cli/options.h"
#include "cli/plugin_options.h"
#include "cli/progress.h"
#include "cli/recipe_options.h"
#include "cli/tensor_module.h"
#include "cli/transfer.h"
#include "model/weights/model_directory.h"

#include <fmt/format.h>

#include <set>

namespace fvlm::cli {

Options export_options() {
  Options options(
      "export MODEL --out DIR (--dtype bf16|fp16|fp32 | --huggingface |\n"
      "    --gguf f32|f16|bf16|q8_0|q4_0 [--decoder-only] |\n"
      "    --quantize int8|int4 [--calibrate RECIPE] [--activations int8] [--skip GLOB...]) [--json]",
      "Convert a model directory or checkpoint to a new model directory, every number rounded to the nearest.\n"
      "transformers loads its folders vision and decoder. With --huggingface, write what `import --model` read:\n"
      "one folder of the whole model, which transformers loads.\n"
      "With --gguf, write what llama.cpp, Ollama and LM Studio run: model.gguf, the decoder with its tokenizer, and\n"
      "mmproj.gguf, the encoder and the connector.\n"
      "With --quantize, store the weights of linears in few bits, in the format pack-quantized of compressed-tensors:\n"
      "int8 with a scale for each output, int4 with one for each group of up to 128 inputs. Every verb that runs a\n"
      "model reads such a directory, and so does transformers.",
      "export runs/fvlm-135m/prefer/step-002593 --out models/fvlm-135m --dtype bf16");
  options.positional("MODEL", named_model_help)
      .required_value("out", "DIR", "the new model directory; must not exist yet, parent folders are created")
      .value("dtype", "bf16|fp16|fp32",
             "dtype of the weights; with --huggingface or --quantize the default is what they have")
      .flag("huggingface", "write one Hugging Face folder, of the form that the model was imported from")
      .value("gguf", "f32|f16|bf16|q8_0|q4_0", "write GGUF files whose matrices have this type")
      .flag("decoder-only", "with --gguf: leave out mmproj.gguf; the model then reads texts alone")
      .value("quantize", "int8|int4", "quantize the weights of linears; embeddings and output heads stay as they are")
      .value("head", "int8|int4",
             "with --quantize: the output head as well, in 8 or 4 bits; one that is tied to the embedding becomes a "
             "matrix of its own; int4 not with --activations")
      .value("activations", "int8",
             "with --quantize int8: products read activations in 8 bits as well, with a scale for each row")
      .repeated_value(
          "skip", "GLOB",
          "with --quantize: a module that stays as it is, as decoder.model.layers.0.*, or .-1.* for the last "
          "layer (repeatable); default: the skip of the recipe where the checkpoint is of a "
          "quantization_aware stage, else connector.*")
      .value(
          "calibrate", "RECIPE",
          "with --quantize: choose codes for the activations of training samples of this recipe, so that the rounding "
          "errors of a weight make up for each other")
      .value("calibration-samples", "N", "how many of them; default 256")
      .repeated_value("set", "PATH=VALUE", "with --calibrate: change a value of the recipe's plan (repeatable)")
      .repeated_value("arg", "NAME=VALUE",
                      "with --calibrate: set what fvlm.arg(\"NAME\") returns in the recipe (repeatable)")
      .value("device", "cpu|cuda", "with --calibrate: where the model runs; default cpu")
      .flag("json", "print one JSON document on standard output");
  return with_plugin_options(options);
}

namespace {

nlohmann::ordered_json report_json(const gguf::ExportReport& report, const std::string& out) {
  nlohmann::ordered_json files = nlohmann::ordered_json::object();
  for (const auto& each : report.files)
    files[each.name] = {{"parameters", each.parameters}, {"bytes", each.bytes}, {"tensors", each.tensors}};
  return {{"folder", out}, {"files", files}, {"overflowed", report.overflowed}};
}

int export_gguf(const ParsedOptions& parsed) {
  if (parsed.value("dtype") || parsed.flag("huggingface"))
    throw Error(ErrorKind::usage, "--gguf excludes --dtype and --huggingface")
        .advise("the type of the weights is --gguf's value: f32, f16, bf16, q8_0 or q4_0");
  const std::string out = *parsed.value("out");
  gguf::ExportRequest request{model_named(*parsed.value("MODEL")), out, &gguf::element_type(*parsed.value("gguf")),
                              parsed.flag("decoder-only")};
  gguf::ExportReport report;
  {
    const InterruptibleWrites interruptible;
    Progress progress("writing " + out);
    report = gguf::export_model(request, [&](uint64_t done, uint64_t total) { progress.bytes(done, total); });
  }
  for (const auto& [name, count] : report.overflowed)
    log_warning("{}: {} of its values overflowed this type and became infinite; use bf16 or f32", name, count);
  if (parsed.flag("json")) {
    fmt::print("{}", dump(report_json(report, out)));
    return 0;
  }
  TextTable table({"file", "parameters", "stored as", "size"});
  for (const auto& each : report.files) {
    std::vector<std::string> types;
    for (const auto& [type, count] : each.tensors) types.push_back(type);
    table.row({each.name, grouped(static_cast<int64_t>(each.parameters)), join(types, ", "), human_bytes(each.bytes)});
  }
  fmt::print("{}\n\n{}", out, table.text());
  return 0;
}

// Encoders whose linears transformers 5.23 does not load in few bits: it initializes those of SigLIP, which have no
// weight then, and does not find HunyuanOCR's by the names of the folder. Of Qianfan-OCR it loads no linear of any
// part.
void warn_of_transformers(const std::filesystem::path& model) {
  static const std::set<std::string> unread{"siglip_vision_model", "siglip2_vision_model", "hunyuan_vl_vision"};
  const ModelDirectory directory = ModelDirectory::open(model);
  const WeightSchemes schemes = directory.schemes();
  for (const ModelPart& part : directory.description().parts) {
    if (part.role() != Role::encoder || schemes.empty()) continue;
    const std::string type = part.folder.config.value("model_type", ""), prefix = part.name + ".";
    const auto first = schemes.lower_bound(prefix);
    if (type == "qianfan_ocr_vision")
      log_warning("transformers 5.23 does not load this folder: it reads no Qianfan-OCR in few bits");
    else if (unread.contains(type) && first != schemes.end() && first->first.starts_with(prefix))
      log_warning("transformers 5.23 does not load this folder: it reads no {} in few bits; for transformers, quantize "
                  "with --skip '{}*' --skip 'connector.*'",
                  type, prefix);
  }
}

} // namespace

int run_export(Arguments arguments) {
  auto parsed = export_options().parse(arguments);
  if (!parsed) return 0;
  if (parsed->value("gguf") && parsed->value("quantize"))
    throw Error(ErrorKind::usage, "--gguf excludes --quantize").advise("--gguf q8_0 and --gguf q4_0 quantize");
  if (parsed->value("quantize")) return tensor_module().export_quantized(arguments);
  for (const char* name : {"activations", "head", "skip", "calibrate", "calibration-samples", "set", "arg", "device"})
    if (parsed->value(name)) throw Error(ErrorKind::usage, "--{} needs --quantize", name);
  if (parsed->value("gguf")) return export_gguf(*parsed);
  if (parsed->flag("decoder-only")) throw Error(ErrorKind::usage, "--decoder-only needs --gguf");
  std::string out = *parsed->value("out");
  const auto dtype = dtype_option(*parsed);
  if (!dtype && !parsed->flag("huggingface"))
    throw Error(ErrorKind::usage, "--dtype is missing: bf16, fp16 or fp32, the dtype of the weights");
  const auto model = model_named(*parsed->value("MODEL"));
  if (parsed->flag("huggingface")) warn_of_transformers(model);
  TransferReport report;
  {
    const InterruptibleWrites interruptible;
    Progress progress("writing " + out);
    const auto show = [&](uint64_t done, uint64_t total) { progress.bytes(done, total); };
    report = parsed->flag("huggingface") ? export_whole_model(model, out, dtype, show)
                                         : export_model(model, out, *dtype, show);
    if (!parsed->flag("huggingface")) keep_plan(model, out);
  }
  print_transfer(report, out, parsed->flag("json"));
  return 0;
}

} // namespace fvlm::cli
