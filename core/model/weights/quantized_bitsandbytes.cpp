// Weights of bitsandbytes: numbers of all rows behind each other in codes of 4 bits, which a table of 16 (NF4 or FP4)
// says, with the largest number of each block; these may be quantized themselves, to a table of 256.
#include "model/weights/quantized_form.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>

namespace fvlm::quantized {
namespace {

constexpr int64_t most_features = int64_t{1} << 24;

// What quant_state says: the shape of the weight, and how many numbers share a largest one.
struct State {
  std::string type;
  int64_t rows, cols, block, nested_block;
  double nested_offset;
};

std::optional<State> read_state(Module& module, const std::string& type) {
  const std::string suffix = ".weight.quant_state.bitsandbytes__" + type;
  const TensorView* found = module.find(suffix);
  if (!found || found->dtype != DType::u8) {
    (void)module.expect(suffix, {DType::u8}, {}); // notes what is wrong
    return std::nullopt;
  }
  const std::string_view text(reinterpret_cast<const char*>(found->data.data()), found->data.size());
  const nlohmann::json json = nlohmann::json::parse(text, nullptr, false);
  if (!json.is_object()) {
    module.refuse("a quant_state for it that is a JSON object");
    return std::nullopt;
  }
  ConfigReader reader(json, "");
  const std::vector<int64_t> shape = reader.wholes("shape", {});
  State state{type,
              0,
              0,
              reader.whole("blocksize", std::nullopt, 1),
              reader.whole("nested_blocksize", 256, 1),
              reader.number("nested_offset", 0, -1e30, 1e30)};
  reader.refuse_unless(reader.text("quant_type", std::nullopt) == type, "quant_type", type + " is, as its name says");
  reader.refuse_unless(shape.size() == 2 &&
                           std::ranges::all_of(shape, [](int64_t size) { return size > 0 && size <= most_features; }),
                       "shape", "that of a matrix is");
  for (const std::string& problem : reader.problems().list()) module.refuse("another quant_state for it: " + problem);
  if (!reader.problems().list().empty()) return std::nullopt;
  state.rows = shape[0], state.cols = shape[1];
  return state;
}

class TabledNibbles final : public Dequantizer {
 public:
  // `nested`: the numbers of a quantized `largest`, and its own largest ones; null where it has its numbers.
  struct Nested {
    const TensorView *largest, *table;
  };
  TabledNibbles(const State& state, const TensorView& codes, const TensorView& table, const TensorView& largest,
                Nested nested)
      : Dequantizer(fmt::format("bitsandbytes' {} with a scale for each {} numbers", state.type, state.block),
                    codes.data, state.rows, state.cols),
        state_(state), table_(floats_of(table, 0, 16)), largest_(largest) {
    if (!nested.table) return;
    nested_table_ = floats_of(*nested.table, 0, 256);
    nested_largest_ = *nested.largest;
  }

  void read_rows(int64_t first, std::span<float> rows) const override {
    const int64_t begin = first * cols(), end = begin + std::ssize(rows);
    for (int64_t block = begin / state_.block; block * state_.block < end; ++block) {
      const float scale = largest_of(block);
      for (int64_t at = std::max(begin, block * state_.block); at < std::min(end, (block + 1) * state_.block); ++at) {
        const auto both = std::to_integer<size_t>(codes()[static_cast<size_t>(at / 2)]);
        rows[static_cast<size_t>(at - begin)] = table_[at % 2 == 0 ? both >> 4 : both & 15] * scale;
      }
    }
  }

 private:
  float largest_of(int64_t block) const {
    if (nested_table_.empty()) return floats_of(largest_, block, 1)[0];
    const auto code = std::to_integer<size_t>(largest_.data[static_cast<size_t>(block)]);
    return nested_table_[code] * floats_of(nested_largest_, block / state_.nested_block, 1)[0] +
           static_cast<float>(state_.nested_offset);
  }

  State state_;
  std::vector<float> table_, nested_table_;
  TensorView largest_, nested_largest_;
};

std::shared_ptr<const Dequantizer> open_nibbles(Module& module, const std::string& type) {
  const auto state = read_state(module, type);
  if (!state) return nullptr;
  const int64_t numbers = state->rows * state->cols, blocks = (numbers + state->block - 1) / state->block;
  if (module.codes().shape != Shape{(numbers + 1) / 2, 1}) {
    module.refuse(fmt::format("[{}, 1] for the weight's shape [{}, {}]", (numbers + 1) / 2, state->rows, state->cols));
    return nullptr;
  }
  const TensorView* table = module.expect(".weight.quant_map", {DType::f32}, {{16}});
  const TensorView* largest = module.expect(".weight.absmax", {DType::f32, DType::u8}, {{blocks}});
  if (!table || !largest) return nullptr;
  TabledNibbles::Nested nested{};
  if (largest->dtype == DType::u8) {
    const int64_t outer = (blocks + state->nested_block - 1) / state->nested_block;
    nested = {module.expect(".weight.nested_absmax", {DType::f32}, {{outer}}),
              module.expect(".weight.nested_quant_map", {DType::f32}, {{256}})};
    if (!nested.largest || !nested.table) return nullptr;
  }
  return std::make_shared<TabledNibbles>(*state, module.codes(), *table, *largest, nested);
}

} // namespace

std::optional<Form> bitsandbytes_form(ConfigReader& reader) {
  std::optional<Form> form;
  if (reader.flag("load_in_8bit", false)) {
    form = bitsandbytes_int8_form();
  } else {
    reader.refuse_unless(reader.flag("load_in_4bit", false), "load_in_4bit",
                         "load_in_4bit or load_in_8bit has to be true");
    const std::string type = text_or(reader, "bnb_4bit_quant_type", "fp4"),
                      storage = text_or(reader, "bnb_4bit_quant_storage", "uint8");
    reader.refuse_unless(type == "nf4" || type == "fp4", "bnb_4bit_quant_type", "nf4 and fp4 are");
    reader.refuse_unless(storage == "uint8", "bnb_4bit_quant_storage", "only uint8 is");
    form = Form{.codes = ".weight", .code_types = {DType::u8}};
    form->companions = {".weight.absmax", ".weight.quant_map", ".weight.nested_absmax", ".weight.nested_quant_map",
                        ".weight.quant_state.bitsandbytes__" + type};
    form->open = [type](Module& module) { return open_nibbles(module, type); };
  }
  form->plain = reader.texts("llm_int8_skip_modules");
  return form;
}

} // namespace fvlm::quantized
