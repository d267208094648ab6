// Quantized weights on disk, in the format pack-quantized of compressed-tensors: in place of "X.weight" there are
// X.weight_packed, I32 [rows, words], the codes of a row side by side from the lowest bits of its first word on, each
// with half of its range added; X.weight_scale, [rows, groups]; and X.weight_shape, I64 [2]. In memory they have the
// layout of fvlm/quantizer.h.
#pragma once
#include "model/weights/layout.h"

#include <nlohmann/json.hpp>

#include <cstdint>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <vector>

namespace fvlm {

// A scheme of fvlm/quantizer.h that has this form on disk.
struct PackedScheme {
  const char* name; // "int8"
  int64_t bits;
  bool quantizes_activations = false; // to 8 bits, by row, where a product reads them

  int64_t group(int64_t cols) const; // input features that share a scale; all of them for int8
  int64_t groups(int64_t cols) const { return cols / group(cols); }
  int64_t words(int64_t cols) const { return (cols * bits + 31) / 32; }
  // Bytes of a row's codes in memory.
  int64_t code_bytes(int64_t cols) const { return bits == 8 ? cols : 4 * words(cols); }
};

const std::vector<PackedScheme>& packed_schemes();
const PackedScheme* find_packed_scheme(std::string_view name);
// Throws Error(usage) for another name, with the names that there are.
const PackedScheme& packed_scheme(std::string_view name);

// Of the codes and scales of a weight.
int64_t packed_bytes(const PackedScheme& scheme, int64_t rows, int64_t cols);

// Whether a tensor is a layer's matrix that can be stored quantized, of a width from which the schemes can be told
// apart. Embeddings are not: what reads them needs their numbers. Nor are the linears of a delta rule's decays and
// rates, which are a few rows and whose errors would add up over a text. Nor are routers of experts.
bool is_packable(std::string_view name, std::span<const int64_t> shape);
// Of one expert of a mixture. Rows are given to experts in passing, so that their activations are not quantized.
bool is_of_expert(std::string_view name);
// Whether a linear can have an adapter: where it is packable, and of no expert, for which PEFT has none: those are no
// nn.Linear in transformers.
bool takes_adapter(std::string_view name, std::span<const int64_t> shape);
// Of an output head's matrix, which is stored quantized where that was asked for.
bool is_packable_head(std::string_view name, std::span<const int64_t> shape);

// The three tensors in place of a weight, in the order codes, scales, shape.
std::vector<TensorSpec> packed_specs(const TensorSpec& weight, const PackedScheme& scheme);

// The layout with those three in place of each weight that a file has quantized. `find` knows the file's tensors by the
// layout's names; `config` is the folder's config.json, which says whether activations are quantized, and null for a
// connector's file, where they are not. Throws Error(data) for a form that is none of the schemes.
WeightLayout stored_layout(const WeightLayout& layout, const std::function<const TensorView*(const std::string&)>& find,
                           const nlohmann::json& config, const std::string& where);
WeightLayout stored_layout(const WeightLayout& layout, const Safetensors& file, const nlohmann::json& config);
// The scheme of such a tensor, by the spec of its codes; null for what is not the codes of a quantized weight.
const PackedScheme* scheme_of_codes(const TensorSpec& spec);

// By the name of the weight. What is not there is stored as numbers.
using WeightSchemes = std::map<std::string, const PackedScheme*, std::less<>>;

// Codes of a row between disk and memory. Bits that belong to no code are 0 on disk.
void unpack_codes(const PackedScheme& scheme, std::span<const std::byte> words, int64_t cols,
                  std::span<std::byte> codes);
void pack_codes(const PackedScheme& scheme, std::span<const std::byte> codes, int64_t cols, std::span<std::byte> words);

// Modules that are stored alike; a group size of 0 is one group for the row.
using QuantizedModules = std::map<std::pair<const PackedScheme*, int64_t>, std::vector<std::string>>;
// `quantization_config` of a config.json: which modules are stored in which scheme.
nlohmann::json quantization_config(const QuantizedModules& modules);
// Whether a config.json says so of a group of modules. Throws Error(data) for activations in another form than ours.
bool quantizes_activations(const nlohmann::json& config, const std::string& where);

} // namespace fvlm
