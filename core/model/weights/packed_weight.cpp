#include "model/weights/packed_weight.h"

#include "base/error.h"
#include "base/text.h"
#include "model/weights/adapter.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <set>

namespace fvlm {
namespace {

constexpr std::string_view weight_suffix = ".weight", head_name = "lm_head.weight";
constexpr int64_t min_columns = 8; // below, words of both schemes may be equally many

std::string with_suffix(const std::string& weight, const char* suffix) {
  return weight + suffix;
}

// A name as a pattern of Python's `re`. LLaVA's files name two levels that transformers' modules have no more, and
// Qwen2-VL's lack one that they have.
std::string name_pattern(const std::string& module) {
  std::string pattern, before;
  for (const std::string& part : split(module, '.')) {
    const bool is_optional =
        (part == "model" && before == "language_model") || (part == "vision_model" && before == "vision_tower");
    if (part == "layers" && pattern == "model\\.") pattern += "(?:language_model\\.)?";
    pattern += is_optional ? "(?:" + part + "\\.)?" : part + "\\.";
    before = part;
  }
  pattern.resize(pattern.size() - 2); // the last dot
  return pattern;
}

// The same of all experts of the layer, which are thousands.
std::string with_any_expert(std::string pattern) {
  constexpr std::string_view word = "\\.experts\\.";
  const size_t begin = pattern.find(word);
  if (begin == pattern.npos) return pattern;
  const size_t number = begin + word.size();
  return pattern.replace(number, pattern.find('\\', number) - number, "\\d+");
}

// True of the module in any larger model, by its name in the folder or in transformers 5.
std::string module_pattern(const std::string& module) {
  const std::string in_folder = with_any_expert(name_pattern(module)),
                    in_model = with_any_expert(name_pattern(in_transformers(module)));
  return "re:(?:.*\\.)?" + (in_folder == in_model ? in_folder : "(?:" + in_folder + "|" + in_model + ")") + "$";
}

nlohmann::json int8_activations() {
  return {{"num_bits", 8}, {"type", "int"}, {"symmetric", true}, {"strategy", "token"}, {"dynamic", true}};
}

} // namespace

int64_t PackedScheme::group(int64_t cols) const {
  if (bits == 4)
    for (const int64_t size : {128, 64, 32})
      if (cols % size == 0 && (cols >= 4 * size || size == 32)) return size;
  return cols;
}

const std::vector<PackedScheme>& packed_schemes() {
  static const std::vector<PackedScheme> schemes{{"int8", 8}, {"int4", 4}, {"w8a8", 8, true}};
  return schemes;
}

const PackedScheme* find_packed_scheme(std::string_view name) {
  for (const PackedScheme& scheme : packed_schemes())
    if (scheme.name == name) return &scheme;
  return nullptr;
}

const PackedScheme& packed_scheme(std::string_view name) {
  if (const PackedScheme* found = find_packed_scheme(name)) return *found;
  std::vector<std::string> names;
  for (const PackedScheme& scheme : packed_schemes()) names.emplace_back(scheme.name);
  throw Error(ErrorKind::usage, "unknown quantization scheme '{}': expected {}", name, join_or(names));
}

int64_t packed_bytes(const PackedScheme& scheme, int64_t rows, int64_t cols) {
  return rows * (scheme.words(cols) + scheme.groups(cols)) * 4;
}

bool is_packable(std::string_view name, std::span<const int64_t> shape) {
  const auto is = [name](std::string_view module) { return name.ends_with(std::string(module) + ".weight"); };
  return shape.size() == 2 && shape[1] >= min_columns && name.ends_with(weight_suffix) &&
         name.find("emb") == name.npos && !is("mlp.gate") && !is("feed_forward.gate") && !is("shared_expert_gate") &&
         !name.ends_with(head_name) && !is("linear_attn.in_proj_a") && !is("linear_attn.in_proj_b") &&
         !is("patchifier");
}

bool is_of_expert(std::string_view name) {
  return name.find(".experts.") != name.npos;
}

bool takes_adapter(std::string_view name, std::span<const int64_t> shape) {
  return is_packable(name, shape) && !is_of_expert(name);
}

bool is_packable_head(std::string_view name, std::span<const int64_t> shape) {
  return shape.size() == 2 && shape[1] >= min_columns && name.ends_with(head_name);
}

std::vector<TensorSpec> packed_specs(const TensorSpec& weight, const PackedScheme& scheme) {
  const int64_t rows = weight.shape[0], cols = weight.shape[1];
  TensorSpec codes{.name = with_suffix(weight.name, "_packed"), .shape = {rows, scheme.words(cols)}},
      scales{.name = with_suffix(weight.name, "_scale"), .shape = {rows, scheme.groups(cols)}},
      shape{.name = with_suffix(weight.name, "_shape"), .shape = {2}};
  codes.dtype = DType::i32;
  codes.packed_as = scheme.name;
  shape.dtype = DType::i64;
  return {std::move(codes), std::move(scales), std::move(shape)};
}

const PackedScheme* scheme_of_codes(const TensorSpec& spec) {
  return spec.packed_as.empty() ? nullptr : find_packed_scheme(spec.packed_as);
}

WeightLayout stored_layout(const WeightLayout& layout, const std::function<const TensorView*(const std::string&)>& find,
                           const nlohmann::json& config, const std::string& where) {
  const bool activations = quantizes_activations(config, where);
  WeightLayout stored = layout;
  stored.tensors.clear();
  for (const TensorSpec& spec : layout.tensors) {
    const bool may_be_packed =
        spec.parameter && (is_packable(spec.name, spec.shape) || is_packable_head(spec.name, spec.shape));
    const TensorView* codes = may_be_packed ? find(with_suffix(spec.name, "_packed")) : nullptr;
    if (!codes) {
      stored.tensors.push_back(spec);
      continue;
    }
    const PackedScheme* found = nullptr;
    const bool with_activations = activations && !is_of_expert(spec.name);
    for (const PackedScheme& scheme : packed_schemes())
      if (codes->shape.size() == 2 && codes->shape[1] == scheme.words(spec.shape[1]) &&
          (!found || scheme.quantizes_activations == with_activations))
        found = &scheme;
    if (!found)
      throw Error(ErrorKind::data,
                  "tensor {} has the shape {}, which holds {} columns of no scheme that is supported: {} bits",
                  shown(codes->name), shape_text(codes->shape), spec.shape[1], "8 or 4")
          .at(where);
    for (TensorSpec& each : packed_specs(spec, *found)) stored.tensors.push_back(std::move(each));
  }
  return stored;
}

WeightLayout stored_layout(const WeightLayout& layout, const Safetensors& file, const nlohmann::json& config) {
  return stored_layout(
      layout,
      [&](const std::string& name) {
        const TensorView* found = file.find(name);
        return found || layout.optional_prefix.empty() ? found : file.find(layout.optional_prefix + name);
      },
      config, file.path().string());
}

// The bytes of int4 are the same in both; int8 is stored with 128 added, which flips the sign bit.
void unpack_codes(const PackedScheme& scheme, std::span<const std::byte> words, int64_t cols,
                  std::span<std::byte> codes) {
  std::memcpy(codes.data(), words.data(), static_cast<size_t>(scheme.code_bytes(cols)));
  if (scheme.bits == 8)
    for (std::byte& code : codes.first(static_cast<size_t>(cols))) code ^= std::byte{0x80};
}

void pack_codes(const PackedScheme& scheme, std::span<const std::byte> codes, int64_t cols,
                std::span<std::byte> words) {
  std::fill(words.begin(), words.end(), std::byte{0});
  unpack_codes(scheme, codes, cols, words); // its own inverse
}

bool quantizes_activations(const nlohmann::json& config, const std::string& where) {
  const auto quantization = config.find("quantization_config");
  if (!config.is_object() || quantization == config.end() || !quantization->is_object()) return false;
  size_t quantized = 0;
  const nlohmann::json groups = quantization->value("config_groups", nlohmann::json::object());
  for (const nlohmann::json& group : groups) {
    const nlohmann::json activations =
        group.is_object() ? group.value("input_activations", nlohmann::json()) : nlohmann::json();
    if (activations.is_null()) continue;
    const nlohmann::json ours = int8_activations();
    for (const auto& [key, value] : ours.items())
      if (!activations.is_object() || activations.value(key, nlohmann::json()) != value)
        throw Error(ErrorKind::data, "input_activations are quantized as {}, and only {} is supported",
                    activations.dump(), ours.dump())
            .at(where + ": quantization_config");
    ++quantized;
  }
  if (quantized > 0 && quantized < groups.size())
    throw Error(ErrorKind::data, "some modules have quantized activations and others have not")
        .at(where + ": quantization_config");
  return quantized > 0;
}

nlohmann::json quantization_config(const QuantizedModules& modules) {
  nlohmann::json groups = nlohmann::json::object();
  for (const auto& [kind, names] : modules) {
    const auto& [scheme, group] = kind;
    nlohmann::json weights = {{"num_bits", scheme->bits}, {"type", "int"}, {"symmetric", true}, {"dynamic", false}};
    weights["strategy"] = group > 0 ? "group" : "channel";
    weights["group_size"] = group > 0 ? nlohmann::json(group) : nlohmann::json();
    nlohmann::json targets = nlohmann::json::array();
    std::set<std::string> known;
    for (const std::string& name : names)
      if (const auto [pattern, is_new] = known.insert(module_pattern(name)); is_new) targets.push_back(*pattern);
    nlohmann::json& made = groups[fmt::format("group_{}", groups.size())];
    made = {
        {"targets", targets}, {"weights", weights}, {"input_activations", nullptr}, {"output_activations", nullptr}};
    if (!scheme->quantizes_activations) continue;
    made["input_activations"] = int8_activations();
    made["format"] = "pack-quantized"; // it would be guessed by what is quantized, and differently
  }
  return {{"quant_method", "compressed-tensors"},
          {"format", "pack-quantized"},
          {"quantization_status", "compressed"},
          {"config_groups", groups},
          {"ignore", nlohmann::json::array()}};
}

} // namespace fvlm
