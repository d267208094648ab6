// A published form of quantized weights: which tensors a weight consists of, and what numbers they stand for.
#pragma once
#include "base/config_reader.h"
#include "base/problems.h"
#include "model/weights/dequantizer.h"
#include "model/weights/safetensors.h"

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace fvlm::quantized {

using Shape = std::vector<int64_t>;

// The tensors of a module: "model.layers.0.mlp.up_proj" has "model.layers.0.mlp.up_proj.weight_scale". What is wrong
// with them is noted.
class Module {
 public:
  Module(std::string name, const TensorView& codes, const Safetensors& file, Problems& problems)
      : name_(std::move(name)), codes_(codes), file_(file), problems_(problems) {}

  const TensorView& codes() const { return codes_; }
  const TensorView* find(std::string_view suffix) const { return file_.find(name_ + std::string(suffix)); }
  // Null, and noted, unless it is there with one of these element types and shapes. Numbers have to be finite.
  const TensorView* expect(std::string_view suffix, const std::vector<DType>& types, const std::vector<Shape>& shapes);
  // Notes that the codes would have to have another shape.
  void refuse(const std::string& what);

 private:
  std::string name_;
  const TensorView& codes_;
  const Safetensors& file_;
  Problems& problems_;
};

struct Form {
  std::string codes;                   // what stands behind a module's name for the tensor with the codes: ".weight"
  std::vector<DType> code_types;       // of that tensor; with another one it is no quantized weight
  std::vector<std::string> companions; // likewise, of the tensors that are read with the codes
  std::vector<std::string> unused;     // likewise, of those that are not, such as scales of activations
  std::vector<std::string> plain;      // modules that config.json says are not quantized
  bool plain_below = true;             // and those inside them
  // Null where something is wrong, which the module notes.
  std::function<std::shared_ptr<const Dequantizer>(Module&)> open;
};

// By quantization_config; problems are noted. None: the file stays as it is.
std::optional<Form> fp8_form(ConfigReader& reader);
std::optional<Form> compressed_tensors_form(ConfigReader& reader);
std::optional<Form> gptq_form(ConfigReader& reader);
std::optional<Form> awq_form(ConfigReader& reader);
std::optional<Form> bitsandbytes_form(ConfigReader& reader);
Form bitsandbytes_int8_form(); // that of load_in_8bit

// Python's programs write null for what they leave to the default.
std::string text_or(ConfigReader& reader, const char* key, const char* fallback);
const std::vector<DType>& floating_types();
// Numbers of a floating tensor.
std::vector<float> floats_of(const TensorView& tensor, int64_t first, int64_t count);

} // namespace fvlm::quantized
