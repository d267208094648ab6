// Weights in codes of 4 or 8 bits, side by side in words of 32 from the lowest bits on: GPTQ's and AWQ's. Both store
// the transpose of a weight, and a scale and a zero for each group of input features and output feature.
#include "base/text.h"
#include "model/weights/quantized_form.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <cstring>

namespace fvlm::quantized {
namespace {

// What shares a word, and in which order.
struct Packing {
  const char* method;
  int64_t bits;
  bool by_outputs;      // codes of neighbouring outputs of an input; false: of neighbouring inputs of an output
  uint32_t zero_offset; // which is added to zeros that are read, modulo the number of codes

  int64_t per_word() const { return 32 / bits; }
  // The lowest bit of an output's code, or zero, in its word. AWQ's order is that of what its kernels unpack at a time.
  int64_t shift_of(int64_t output) const {
    constexpr int64_t places[] = {0, 4, 1, 5, 2, 6, 3, 7};
    return bits * (by_outputs ? places[output % 8] : output % per_word());
  }
};

uint32_t word_of(std::span<const std::byte> words, int64_t place) {
  uint32_t word;
  std::memcpy(&word, words.data() + place * 4, sizeof word);
  return word;
}

class PackedWords final : public Dequantizer {
 public:
  // `group_of`: of each input.
  PackedWords(std::string form, const TensorView& codes, const TensorView& scales, const TensorView& zeros,
              std::vector<int32_t> group_of, Packing packing)
      : Dequantizer(std::move(form), codes.data, scales.shape[1], std::ssize(group_of)), scales_(scales), zeros_(zeros),
        group_of_(std::move(group_of)), packing_(packing) {}

  void read_rows(int64_t first, std::span<float> rows) const override {
    const int64_t count = std::ssize(rows) / cols(), groups = scales_.shape[0];
    std::vector<float> scales, zeros;
    for (int64_t group = 0; group < groups; ++group) {
      const auto own = floats_of(scales_, group * this->rows() + first, count);
      scales.insert(scales.end(), own.begin(), own.end());
      for (int64_t row = first; row < first + count; ++row) zeros.push_back(zero_of(group, row));
    }
    const std::vector<Place> of_rows = places_of(first, count);
    for (int64_t col = 0; col < cols(); ++col) {
      const Place of_col = place_of_col(col);
      const auto group = static_cast<size_t>(group_of_[static_cast<size_t>(col)] * count);
      for (size_t i = 0; i < of_rows.size(); ++i) {
        const uint32_t word = word_of(codes(), of_col.word + of_rows[i].word),
                       code = word >> (of_col.shift + of_rows[i].shift) & mask();
        rows[i * static_cast<size_t>(cols()) + static_cast<size_t>(col)] =
            (static_cast<float>(code) - zeros[group + i]) * scales[group + i];
      }
    }
  }

 private:
  uint32_t mask() const { return (uint32_t{1} << packing_.bits) - 1; }

  // Of a code: those of its row and of its column add up.
  struct Place {
    int64_t word, shift;
  };
  Place place_of_col(int64_t col) const {
    const int64_t each = packing_.per_word();
    return packing_.by_outputs ? Place{col * (rows() / each), 0}
                               : Place{col / each * rows(), packing_.bits * (col % each)};
  }
  std::vector<Place> places_of(int64_t first_row, int64_t count) const {
    std::vector<Place> out;
    for (int64_t row = first_row; row < first_row + count; ++row)
      out.push_back(packing_.by_outputs ? Place{row / packing_.per_word(), packing_.shift_of(row)} : Place{row, 0});
    return out;
  }

  float zero_of(int64_t group, int64_t row) const {
    const int64_t each = packing_.per_word();
    const uint32_t word = word_of(zeros_.data, group * (rows() / each) + row / each);
    return static_cast<float>(((word >> packing_.shift_of(row)) + packing_.zero_offset) & mask());
  }

  TensorView scales_, zeros_;
  std::vector<int32_t> group_of_;
  Packing packing_;
};

// Of the inputs, by g_idx where there is one. Nothing, and noted, where it names groups that are not there.
std::optional<std::vector<int32_t>> groups_of(Module& module, int64_t inputs, int64_t size, int64_t groups) {
  std::vector<int32_t> out(static_cast<size_t>(inputs));
  for (size_t i = 0; i < out.size(); ++i) out[i] = static_cast<int32_t>(static_cast<int64_t>(i) / size);
  if (!module.find(".g_idx")) return out;
  const TensorView* given = module.expect(".g_idx", {DType::i32}, {{inputs}});
  if (!given) return std::nullopt;
  std::memcpy(out.data(), given->data.data(), given->data.size());
  for (const int32_t group : out)
    if (group < 0 || group >= groups) {
      module.refuse(fmt::format("a g_idx of the groups 0 to {} for it, got {}", groups - 1, group));
      return std::nullopt;
    }
  return out;
}

// `group_size`: -1 for one group of all inputs.
std::shared_ptr<const Dequantizer> open_words(Module& module, const Packing& packing, int64_t group_size) {
  const TensorView& codes = module.codes();
  const int64_t each = packing.per_word(), inputs = codes.shape[0] * (packing.by_outputs ? 1 : each),
                outputs = codes.shape[1] * (packing.by_outputs ? each : 1), size = group_size < 0 ? inputs : group_size,
                groups = (inputs + size - 1) / size;
  if (outputs % each != 0) {
    module.refuse(fmt::format("a number of outputs that {} divides, as many as a word of zeros has", each));
    return nullptr;
  }
  const TensorView* scales = module.expect(".scales", floating_types(), {{groups, outputs}});
  const TensorView* zeros = module.expect(".qzeros", {DType::i32}, {{groups, outputs / each}});
  auto group_of = groups_of(module, inputs, size, groups);
  if (!scales || !zeros || !group_of) return nullptr;
  return std::make_shared<PackedWords>(fmt::format("{}'s int{} with a scale for each {}", packing.method, packing.bits,
                                                   group_size < 0 ? "row" : fmt::format("{} columns of a row", size)),
                                       codes, *scales, *zeros, std::move(*group_of), packing);
}

// How the codes are stored. An older name of the key goes before `format`, as in transformers, and case says nothing.
struct Stored {
  const char* key;
  std::string format;
};
Stored stored_as(ConfigReader& reader, const char* older_key, const char* otherwise) {
  const char* key = reader.has(older_key) ? older_key : "format";
  return {key, lower_case(text_or(reader, key, otherwise))};
}

Form form_of(ConfigReader& reader, const Packing& packing) {
  const int64_t group_size = reader.whole("group_size", 128, -1);
  reader.refuse_unless(group_size != 0, "group_size", "a number of input features, or -1 for all of them is");
  Form form{.codes = ".qweight", .code_types = {DType::i32}, .companions = {".qzeros", ".scales", ".g_idx"}};
  form.plain = reader.texts("modules_to_not_convert");
  form.open = [=](Module& module) { return open_words(module, packing, group_size); };
  return form;
}

} // namespace

std::optional<Form> gptq_form(ConfigReader& reader) {
  const int64_t bits = reader.whole("bits", std::nullopt, 1, 32);
  reader.refuse_unless(bits == 4 || bits == 8, "bits", "4 and 8 are");
  const auto [key, format] = stored_as(reader, "checkpoint_format", "gptq");
  reader.refuse_unless(format == "gptq" || format == "gptq_v2", key, "gptq and gptq_v2 are");
  if (const nlohmann::json* dynamic = reader.object("dynamic"))
    for (const auto& [pattern, other] : dynamic->items())
      reader.refuse_unless(pattern.starts_with("-:"), "dynamic", "all modules have to have the same bits and groups");
  // The first format stores zeros less 1.
  return form_of(reader, {"GPTQ", bits == 8 ? 8 : 4, false, format == "gptq" ? 1u : 0u});
}

std::optional<Form> awq_form(ConfigReader& reader) {
  reader.refuse_unless(reader.whole("bits", 4, 1, 32) == 4, "bits", "4 are");
  const auto [key, format] = stored_as(reader, "version", "gemm");
  reader.refuse_unless(format == "gemm", key, "only gemm is");
  reader.refuse_unless(reader.flag("zero_point", true), "zero_point", "weights have to have zeros");
  return form_of(reader, {"AWQ", 4, true, 0});
}

} // namespace fvlm::quantized
