#include "model/weights/quantized_folder.h"

#include "base/error.h"
#include "base/text.h"
#include "model/weights/convert.h"
#include "model/weights/quantized_form.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cmath>

namespace fvlm {
namespace quantized {
namespace {

// By the name that quant_method has.
struct Method {
  const char* name;
  std::optional<Form> (*form)(ConfigReader& reader);
};
constexpr Method methods[] = {{"fp8", fp8_form},
                              {"compressed-tensors", compressed_tensors_form},
                              {"gptq", gptq_form},
                              {"awq", awq_form},
                              {"bitsandbytes", bitsandbytes_form}};

bool is_finite(const TensorView& tensor) {
  constexpr int64_t piece = 1 << 16;
  const auto count = static_cast<int64_t>(tensor.elements());
  for (int64_t first = 0; first < count; first += piece)
    for (const float number : floats_of(tensor, first, std::min(piece, count - first)))
      if (!std::isfinite(number)) return false;
  return true;
}

std::optional<Form> read_form(const nlohmann::json& quantization, const std::string& where) {
  ConfigReader reader(quantization, where + ": quantization_config");
  const std::string word = reader.text("quant_method", std::nullopt);
  std::optional<Form> form;
  const auto* method = std::ranges::find_if(methods, [&](const Method& each) { return word == each.name; });
  if (method != std::end(methods))
    form = method->form(reader);
  else
    reader.refuse_unless(!reader.has("quant_method"), "quant_method", fmt::format("{} are", quantized_forms()));
  reader.finish("import the folder of the model that it was quantized from, or one that is quantized otherwise");
  return form;
}

// The element type of the model whose weights were quantized.
DType plain_type(const nlohmann::json& config) {
  const nlohmann::json text = config.value("text_config", nlohmann::json::object());
  for (const nlohmann::json* each : {&config, &text})
    for (const char* key : {"dtype", "torch_dtype"})
      if (each->is_object() && each->contains(key)) {
        if (each->at(key) == "float32") return DType::f32;
        if (each->at(key) == "float16") return DType::f16;
      }
  return DType::bf16;
}

// The name of the module whose tensor this is, of those with one of these words behind their names.
std::optional<std::string> module_of(const std::string& tensor, const std::vector<std::string>& suffixes) {
  for (const std::string& suffix : suffixes)
    if (tensor.ends_with(suffix)) return tensor.substr(0, tensor.size() - suffix.size());
  return std::nullopt;
}

class PlainWeights {
 public:
  PlainWeights(const Safetensors& file, const Form& form, DType dtype) : file_(file), form_(form), dtype_(dtype) {}

  std::vector<TensorView> tensors() {
    std::vector<TensorView> out;
    bool any = false;
    for (const TensorView& tensor : file_.tensors()) {
      if (const auto module = module_of(tensor.name, {form_.codes}); module && is_codes(tensor)) {
        any = true;
        if (auto weight = plain_weight(*module, tensor)) out.push_back(std::move(*weight));
      } else if (const auto owner = module_of(tensor.name, form_.companions)) {
        require_codes(*owner, tensor);
      } else if (!module_of(tensor.name, form_.unused)) {
        out.push_back(tensor);
      }
    }
    if (!any && problems_.list().empty())
      problems_.add(
          "expected quantized weights, as config.json has a quantization_config: tensors \"*{}\" of {}; got none",
          form_.codes, join_or(type_names(form_.code_types)));
    problems_.raise(file_.path().string(), "config.json and weights must be of one model: fetch both again");
    return out;
  }

  static std::vector<std::string> type_names(const std::vector<DType>& types) {
    std::vector<std::string> names;
    for (const DType type : types) names.emplace_back(name_of(type));
    return names;
  }

 private:
  bool is_codes(const TensorView& tensor) const {
    return std::ranges::find(form_.code_types, tensor.dtype) != form_.code_types.end();
  }

  std::optional<TensorView> plain_weight(const std::string& name, const TensorView& codes) {
    for (const std::string& plain : form_.plain)
      if (name == plain || (form_.plain_below && name.starts_with(plain + ".")))
        problems_.add("tensor {} holds {}, and config.json says that {} is not quantized", shown(codes.name),
                      name_of(codes.dtype), shown(plain));
    Module module(name, codes, file_, problems_);
    if (codes.shape.size() != 2 || codes.elements() == 0) {
      module.refuse("a matrix");
      return std::nullopt;
    }
    auto dequantizer = form_.open(module);
    if (!dequantizer) return std::nullopt;
    TensorView weight{{name + ".weight", dtype_, {dequantizer->rows(), dequantizer->cols()}}, {}, dequantizer};
    return weight;
  }

  void require_codes(const std::string& module, const TensorView& companion) {
    const std::string name = module + form_.codes;
    const TensorView* codes = file_.find(name);
    if (codes && is_codes(*codes)) return;
    problems_.add("tensor {} is there, and {} {}: expected {}", shown(companion.name), shown(name),
                  codes ? fmt::format("holds {}", name_of(codes->dtype)) : "is missing",
                  join_or(type_names(form_.code_types)));
  }

  const Safetensors& file_;
  const Form& form_;
  DType dtype_;
  Problems problems_;
};

} // namespace

const TensorView* Module::expect(std::string_view suffix, const std::vector<DType>& types,
                                 const std::vector<Shape>& shapes) {
  const std::string name = name_ + std::string(suffix);
  const TensorView* found = file_.find(name);
  if (!found) {
    problems_.add("tensor {} is missing: the codes of {} have no numbers without it", shown(name), shown(codes_.name));
    return nullptr;
  }
  if (std::ranges::find(types, found->dtype) == types.end()) {
    problems_.add("tensor {} holds {}: expected {}", shown(name), name_of(found->dtype),
                  join_or(PlainWeights::type_names(types)));
    return nullptr;
  }
  if (std::ranges::find(shapes, found->shape) == shapes.end()) {
    std::vector<std::string> expected;
    for (const Shape& shape : shapes) expected.push_back(shape_text(shape));
    problems_.add("tensor {} has the shape {}: expected {} for {} of {}", shown(name), shape_text(found->shape),
                  join_or(expected), shown(codes_.name), shape_text(codes_.shape));
    return nullptr;
  }
  if (is_floating(found->dtype) && !is_finite(*found)) {
    problems_.add("tensor {} has numbers that are not finite: expected scales", shown(name));
    return nullptr;
  }
  return found;
}

void Module::refuse(const std::string& what) {
  problems_.add("tensor {} has the shape {}: expected {}", shown(codes_.name), shape_text(codes_.shape), what);
}

const std::vector<DType>& floating_types() {
  static const std::vector<DType> types{DType::bf16, DType::f16, DType::f32};
  return types;
}

std::string text_or(ConfigReader& reader, const char* key, const char* fallback) {
  return reader.has(key) ? reader.text(key, fallback) : fallback;
}

std::vector<float> floats_of(const TensorView& tensor, int64_t first, int64_t count) {
  std::vector<float> out(static_cast<size_t>(count));
  const size_t size = size_of(tensor.dtype);
  convert(tensor.data.subspan(static_cast<size_t>(first) * size, static_cast<size_t>(count) * size), tensor.dtype,
          std::as_writable_bytes(std::span(out)), DType::f32);
  return out;
}

} // namespace quantized

std::string quantized_forms() {
  return "fp8, gptq, awq, bitsandbytes, and of compressed-tensors float-quantized, int-quantized and pack-quantized";
}

Safetensors plain_weights(const Safetensors& file, nlohmann::json& config, const std::string& where) {
  constexpr const char *key = "quantization_config", *text = "text_config";
  // Some folders say it of the decoder's config alone, or of both.
  nlohmann::json& holder = !config.contains(key) && config.contains(text) ? config[text] : config;
  const auto quantization = holder.find(key);
  if (quantization == holder.end() || !quantization->is_object())
    return file; // what is wrong, check_quantization_config says
  const auto form = quantized::read_form(*quantization, where);
  if (!form) return file;
  Safetensors plain = file.view(quantized::PlainWeights(file, *form, quantized::plain_type(config)).tensors());
  if (const auto part = config.find(text); part != config.end() && part->is_object() && part->contains(key) &&
                                           &*part != &holder && part->at(key) == *quantization)
    part->erase(key);
  holder.erase(key);
  return plain;
}

} // namespace fvlm
