// Adapters of a part: LoRA or DoRA on some of its linears, the modules that train whole beside them, and the base,
// whose weights stay where they are. On disk an adapter has PEFT's form, adapter_config.json and
// adapter_model.safetensors, in the part's folder; PEFT loads that folder.
#pragma once
#include "model/weights/blocks.h"
#include "model/weights/layout.h"
#include "model/weights/peft_folder.h"

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace fvlm {

// The weights that a part's adapters were trained on.
struct AdapterBase {
  std::string folder;    // a Hugging Face folder
  uint64_t checksum = 0; // base_checksum() of its weights
};

struct PartAdapter {
  static constexpr const char* config_file = "adapter_config.json";
  static constexpr const char* weights_file = "adapter_model.safetensors";

  double dropout = 0;
  bool dora = false;
  std::vector<AdaptedModule> modules; // in the order of the part's layout
  std::vector<std::string> saved;     // its tensors that train whole: "model.norm.weight"
  AdapterBase base;
  std::optional<Safetensors> weights; // of a directory that was read; none: it is made fresh

  const AdaptedModule* find(std::string_view module) const; // null: it has no adapter
  bool saves(std::string_view tensor) const;
  std::string summary() const; // "rank 4, alpha 8 on 12 linears"
};

// Names of the tensors beside a linear's weight.
std::string lora_a_of(const std::string& module);
std::string lora_b_of(const std::string& module);
std::string magnitude_of(const std::string& module);
// The linear of "X.weight".
std::string module_of(const std::string& weight);
std::string in_transformers(std::string module); // what transformers 5 calls it in a model, where folders say otherwise
std::string in_folder(std::string module, const WeightLayout& part); // and the way back
// How PEFT calls a tensor of the part in its file, after the modules of transformers' model; and the way back.
std::string peft_name(const std::string& tensor);
std::string name_of_peft(const std::string& tensor, const WeightLayout& part);

// The linears of a part that can have adapters.
std::vector<std::string> linears_of(const WeightLayout& layout);

// The linears of a part that `targets` name: a module's name or its end, as PEFT has it; or "q", "k", "v", "o", "gate",
// "up", "down" of any family; or "all". Throws Error(recipe) at `where` for a target that names none, with the nearest.
std::vector<std::string> adapted_modules(const WeightLayout& layout, const std::vector<std::string>& targets,
                                         const std::string& where);
// The regular expression of ModulePatterns for what `targets` may have, or another one as it is.
std::string expression_of_target(const std::string& target);
// The tensors of the modules that train whole, by a module's name or its end. Throws as adapted_modules(), and for a
// linear, which has an adapter instead.
std::vector<std::string> saved_tensors(const WeightLayout& layout, const std::vector<std::string>& modules,
                                       const std::string& where);

// What an adapter consists of: A, B and magnitudes, then the tensors that train whole.
WeightLayout adapter_layout(const PartAdapter& adapter, const WeightLayout& part);

// `blocks` of a part whose names begin with `prefix` ("decoder."), and behind them those of its adapters. The As of
// weights that one product reads are side by side.
void append_adapter_blocks(std::vector<ParameterBlock>& blocks, const PartAdapter& adapter, const std::string& prefix);

// The configuration of the adapter as PEFT has it of a model that is the part alone.
PeftConfig peft_config(const PartAdapter& adapter, const WeightLayout& part);

// A tensor of a PEFT folder that belongs to a part.
struct PeftTensor {
  TensorView view;    // under the name that the part has for it
  std::string module; // the module that owns it as the folder calls it, which patterns of the configuration match
};
// The adapter that consists of these tensors of the folder `source`. Throws Error(data) for what does not fit the part.
PartAdapter adapter_of(const PeftFolder& source, std::vector<PeftTensor> tensors, const WeightLayout& part);
// The adapter in a folder of PEFT's form, whose base has the layout. Throws Error(data) for what is damaged, does not
// fit or has features that are not supported.
PartAdapter read_adapter(const std::filesystem::path& folder, const WeightLayout& part);

// XXH64 over names and bytes of all tensors: reads everything.
uint64_t base_checksum(const Safetensors& weights);

} // namespace fvlm
