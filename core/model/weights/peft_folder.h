// A folder of the library PEFT: adapter_config.json says what the adapter is, adapter_model.safetensors has its
// tensors.
#pragma once
#include "model/weights/module_patterns.h"
#include "model/weights/safetensors.h"

#include <nlohmann/json_fwd.hpp>

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

namespace fvlm {

// A linear with an adapter.
struct AdaptedModule {
  std::string name; // "model.layers.0.self_attn.q_proj"
  int64_t rank = 0;
  double alpha = 0;

  double scale() const { return alpha / static_cast<double>(rank); }
  bool operator==(const AdaptedModule&) const = default;
};

// adapter_config.json as it is written: all names are those of modules of transformers' model.
struct PeftConfig {
  std::string base; // folder or name of the base model
  double dropout = 0;
  bool dora = false;
  std::vector<AdaptedModule> modules;
  std::vector<std::string> other_linears; // that have no adapter
  std::vector<std::string> saved;         // modules that train whole
  bool ties_weights = false;              // of these an embedding is also the output head

  nlohmann::json json() const;
};

// adapter_config.json as it is read. Rank and alpha may differ by module.
class PeftSettings {
 public:
  // Throws Error(data) that names each key whose value PEFT computes something with that the engine does not.
  static PeftSettings read(const std::filesystem::path& file);

  double dropout = 0;
  bool dora = false;

  // Rank and alpha of a module by its name in the folder; alpha is such that alpha / rank is the scale, also with
  // `use_rslora`. Throws Error(data) where patterns of the configuration are ambiguous or too hard to match.
  AdaptedModule module(const std::string& name) const;

 private:
  double rank_ = 0, alpha_ = 0;
  bool rank_stabilized_ = false;
  ModulePatterns ranks_, alphas_;
};

struct PeftFolder {
  static constexpr std::string_view prefix = "base_model.model."; // of all tensors

  PeftSettings settings;
  Safetensors file;

  // Throws Error(data) for what is damaged, and for tensors that are not PEFT's.
  static PeftFolder open(const std::filesystem::path& folder);
};

} // namespace fvlm
