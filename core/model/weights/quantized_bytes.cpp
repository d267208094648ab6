// Weights in codes of 8 bits with the shape of the weight, and a scale for each tensor, row, group of columns or block:
// quant_method fp8, and compressed-tensors' float-quantized and int-quantized.
#include "model/weights/quantized_form.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

namespace fvlm::quantized {
namespace {

using Values = std::array<float, 256>; // of codes

constexpr const char* unused_scales = " (scales of activations are ignored)";

// e4m3 without infinities.
const Values& e4m3_values() {
  static const Values values = [] {
    Values out;
    for (int code = 0; code < 256; ++code) {
      const int exponent = code >> 3 & 15, fraction = code & 7;
      float size = exponent == 0 ? std::ldexp(static_cast<float>(fraction), -9)
                                 : std::ldexp(static_cast<float>(8 + fraction), exponent - 10);
      if ((code & 127) == 127) size = std::numeric_limits<float>::quiet_NaN();
      out[static_cast<size_t>(code)] = code < 128 ? size : -size;
    }
    return out;
  }();
  return values;
}

const Values& int8_values() {
  static const Values values = [] {
    Values out;
    for (int code = 0; code < 256; ++code)
      out[static_cast<size_t>(code)] = static_cast<float>(static_cast<int8_t>(static_cast<uint8_t>(code)));
    return out;
  }();
  return values;
}

int64_t blocks_in(int64_t length, int64_t block) {
  return (length + block - 1) / block;
}

// Rows and columns that share a scale. The last ones may be cut off.
struct Block {
  int64_t rows, cols;
  Shape grid(const Shape& weight) const { return {blocks_in(weight[0], rows), blocks_in(weight[1], cols)}; }
};

class ScaledBytes final : public Dequantizer {
 public:
  // `zero_points`: subtracted from the codes; may be null. `unit`: a factor on all scales.
  ScaledBytes(std::string form, const TensorView& codes, const TensorView& scales, const TensorView* zero_points,
              Block block, float unit = 1)
      : Dequantizer(std::move(form), codes.data, codes.shape[0], codes.shape[1]), scales_(scales), block_(block),
        unit_(unit), values_(codes.dtype == DType::i8 ? int8_values() : e4m3_values()) {
    if (zero_points) zero_points_ = zero_points->data;
  }

  void read_rows(int64_t first, std::span<float> rows) const override {
    const int64_t grid_cols = blocks_in(cols(), block_.cols);
    for (int64_t row = first; row < first + std::ssize(rows) / cols(); ++row) {
      const int64_t place = row / block_.rows * grid_cols;
      const std::vector<float> scales = floats_of(scales_, place, grid_cols);
      const std::byte* codes = this->codes().data() + row * cols();
      float* out = rows.data() + (row - first) * cols();
      for (int64_t at = 0; at < grid_cols; ++at) {
        const float scale = scales[static_cast<size_t>(at)],
                    zero = zero_points_.empty() ? 0.0f : value_of(zero_points_[static_cast<size_t>(place + at)]);
        for (int64_t col = at * block_.cols; col < std::min((at + 1) * block_.cols, cols()); ++col)
          out[col] = (value_of(codes[col]) - zero) * scale * unit_;
      }
    }
  }

 private:
  float value_of(std::byte code) const { return values_[std::to_integer<size_t>(code)]; }

  TensorView scales_;
  std::span<const std::byte> zero_points_;
  Block block_;
  float unit_;
  const Values& values_;
};

// A row of compressed-tensors' config_groups.
struct WeightGroup {
  DType codes;
  std::string strategy;
  Block block{0, 0}; // of the strategies group and block

  // The shapes that scales may have, and what shares one of them.
  std::vector<Shape> shapes(const Shape& weight) const {
    if (strategy == "tensor") return {{1}, {}, {1, 1}};
    if (strategy == "channel") return {{weight[0], 1}, {weight[0]}};
    return {block.grid(weight)};
  }
  Block block_of(const Shape& weight) const {
    return {strategy == "tensor" ? weight[0]
            : block.rows > 0     ? block.rows
                                 : 1,
            block.cols > 0 ? block.cols : weight[1]};
  }
};

// Two sizes, as weight_block_size and block_structure have them.
std::optional<Block> read_block(ConfigReader& reader, const char* key) {
  const std::vector<int64_t> sizes = reader.wholes(key, {128, 128});
  if (sizes.size() == 2 && sizes[0] > 0 && sizes[1] > 0) return Block{sizes[0], sizes[1]};
  reader.refuse_unless(false, key, "[rows, columns] of a block, both above 0, or null is");
  return std::nullopt;
}

std::optional<WeightGroup> read_group(const nlohmann::json& group, const std::string& name, ConfigReader& parent) {
  const nlohmann::json weights = group.is_object() ? group.value("weights", nlohmann::json()) : nlohmann::json();
  if (weights.is_null()) return std::nullopt; // its modules have plain weights
  if (!weights.is_object()) {
    parent.problems().add("'config_groups.{}.weights' is no object", name);
    return std::nullopt;
  }
  ConfigReader reader(weights, parent.where());
  const std::string type = text_or(reader, "type", "int");
  const bool is_float = type == "float";
  reader.refuse_unless(is_float || type == "int", "type", "float and int are");
  const int64_t bits = reader.whole("num_bits", 8, 1, 32);
  reader.refuse_unless(bits == 8, "num_bits", "in this format 8 are");
  WeightGroup out{is_float ? DType::f8_e4m3 : DType::i8, text_or(reader, "strategy", "tensor")};
  if (out.strategy == "group")
    out.block = {1, reader.whole("group_size", std::nullopt, 1)};
  else if (out.strategy == "block")
    out.block = read_block(reader, "block_structure").value_or(Block{1, 1});
  else
    reader.refuse_unless(out.strategy == "tensor" || out.strategy == "channel", "strategy",
                         "tensor, channel, group and block are");
  for (const std::string& problem : reader.problems().list())
    parent.problems().add("config_groups.{}.weights: {}", name, problem);
  return out;
}

std::shared_ptr<const Dequantizer> open_compressed(Module& module, const std::vector<WeightGroup>& groups) {
  const TensorView& codes = module.codes();
  std::vector<Shape> shapes;
  for (const WeightGroup& group : groups)
    if (group.codes == codes.dtype)
      for (Shape& shape : group.shapes(codes.shape)) shapes.push_back(std::move(shape));
  const TensorView* scales = module.expect(".weight_scale", floating_types(), shapes);
  const TensorView* zero_points = module.find(".weight_zero_point");
  if (zero_points && scales) zero_points = module.expect(".weight_zero_point", {codes.dtype}, {scales->shape});
  if (!scales || (module.find(".weight_zero_point") && !zero_points)) return nullptr;
  for (const WeightGroup& group : groups) {
    if (group.codes != codes.dtype) continue;
    for (const Shape& shape : group.shapes(codes.shape))
      if (scales->shape == shape)
        return std::make_shared<ScaledBytes>(fmt::format("{} with a scale for each {}{}",
                                                         codes.dtype == DType::i8 ? "int8" : "e4m3",
                                                         group.strategy == "channel" ? "row" : group.strategy,
                                                         module.find(".input_scale") ? unused_scales : ""),
                                             codes, *scales, zero_points, group.block_of(codes.shape));
  }
  return nullptr;
}

} // namespace

std::optional<Form> fp8_form(ConfigReader& reader) {
  const std::string scheme = text_or(reader, "activation_scheme", "dynamic");
  reader.refuse_unless(scheme == "dynamic" || scheme == "static", "activation_scheme", "dynamic and static are");
  (void)reader.flag("dequantize", false); // whether transformers would do what is done here
  const std::optional<Block> block =
      reader.has_null("weight_block_size") ? std::nullopt : read_block(reader, "weight_block_size");
  Form form{.codes = ".weight", .code_types = {DType::f8_e4m3}, .companions = {".weight_scale_inv"}};
  form.unused = {".activation_scale"};
  form.plain = reader.texts("modules_to_not_convert");
  form.open = [block](Module& module) -> std::shared_ptr<const Dequantizer> {
    const Shape& weight = module.codes().shape;
    const std::vector<Shape> shapes = block ? std::vector<Shape>{block->grid(weight)} : std::vector<Shape>{{}, {1}};
    const TensorView* scales = module.expect(".weight_scale_inv", floating_types(), shapes);
    if (!scales) return nullptr;
    return std::make_shared<ScaledBytes>(
        fmt::format("e4m3 with a scale for each {}{}",
                    block ? fmt::format("{} x {}", block->rows, block->cols) : "tensor",
                    module.find(".activation_scale") ? unused_scales : ""),
        module.codes(), *scales, nullptr, block.value_or(Block{weight[0], weight[1]}));
  };
  return form;
}

Form bitsandbytes_int8_form() {
  Form form{.codes = ".weight", .code_types = {DType::i8}, .companions = {".SCB"}, .unused = {".weight_format"}};
  form.open = [](Module& module) -> std::shared_ptr<const Dequantizer> {
    const Shape& weight = module.codes().shape;
    const TensorView* scales = module.expect(".SCB", {DType::f32}, {{weight[0]}}); // the largest number of each row
    if (!scales) return nullptr;
    return std::make_shared<ScaledBytes>("bitsandbytes' int8 with a scale for each row", module.codes(), *scales,
                                         nullptr, Block{1, weight[1]}, 1.0f / 127);
  };
  return form;
}

std::optional<Form> compressed_tensors_form(ConfigReader& reader) {
  const std::string format = reader.text("format", std::nullopt);
  if (format == "pack-quantized") return std::nullopt;
  reader.refuse_unless(format == "float-quantized" || format == "int-quantized" || format == "naive-quantized",
                       "format", "float-quantized, int-quantized, naive-quantized and pack-quantized are");
  reader.refuse_unless(text_or(reader, "quantization_status", "compressed") == "compressed", "quantization_status",
                       "only compressed weights are");
  reader.refuse_unless(
      !reader.has("kv_cache_scheme"), "kv_cache_scheme",
      "keys and values are not quantized here; with null in a copy of config.json the weights are read");
  const nlohmann::json* transforms = reader.object("transform_config");
  reader.refuse_unless(!transforms || transforms->empty(), "transform_config", "weights are not transformed");
  const nlohmann::json* sparsity = reader.object("sparsity_config");
  reader.refuse_unless(!sparsity || sparsity->empty() || sparsity->value("format", nlohmann::json()) == "dense",
                       "sparsity_config", "only dense weights are");
  std::vector<WeightGroup> groups;
  if (const nlohmann::json* listed = reader.object("config_groups"))
    for (const auto& [name, group] : listed->items())
      if (auto read = read_group(group, name, reader)) groups.push_back(*read);
  reader.refuse_unless(!groups.empty() || !reader.problems().list().empty(), "format",
                       "config_groups has to say of what");
  Form form{.codes = ".weight", .companions = {".weight_scale", ".weight_zero_point"}};
  for (const WeightGroup& group : groups) form.code_types.push_back(group.codes);
  form.unused = {".input_scale", ".input_zero_point", ".output_scale", ".output_zero_point", ".k_scale", ".v_scale"};
  form.plain_below = false;
  for (std::string& name : reader.texts("ignore"))
    if (!name.starts_with("re:")) form.plain.push_back(std::move(name));
  form.open = [groups](Module& module) { return open_compressed(module, groups); };
  return form;
}

} // namespace fvlm::quantized
