// What quantizing a model's linear weights costs and gains: bytes, times of products, and losses by module.
#pragma once
#include "bench/generation.h"
#include "model/execution.h"
#include "model/weights/packed_weight.h"
#include "plugin/registry.h"
#include "recipe/plan.h"

#include <nlohmann/json.hpp>

#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace fvlm::bench {

struct QuantRequest {
  std::filesystem::path model; // of plain weights; empty: a synthetic one of `shape`
  std::string shape;
  std::optional<plan::Plan> plan; // whose evaluation sets give the losses; none: no losses
  std::vector<std::string> skip{"connector.*"};
  std::string head; // scheme of the output head; empty: it stays as it is
  std::vector<PackedScheme> schemes = packed_schemes();
  std::vector<int64_t> tokens{1, 8, 32}; // rows of a product, and prompts that are answered at once
  int64_t prompt = 72, answer = 128;     // tokens of each; an answer of 0: no generation is measured
  int64_t repeat = 50;
  model::Execution execution;
};

struct QuantReport {
  struct Size {
    std::string scheme;
    int64_t weights;                                  // that are quantized
    int64_t plain, packed, model_plain, model_packed; // bytes: of these weights, and of the whole model
  };
  // A product of the decoder's, in the model's type and in each scheme.
  struct Product {
    std::string weight; // "q_proj + k_proj + v_proj"
    int64_t rows, cols, tokens;
    std::vector<std::pair<std::string, double>> microseconds; // "fp32", "int8", "int4"
  };
  // What a set measures where the weights of one module, or of all, are quantized; "none" before.
  struct Loss {
    std::string scheme, module, set, mode;
    std::vector<std::pair<std::string, double>> values;
  };
  // Greedy answers of the decoder by itself, in the model's type and in each scheme.
  struct Speed {
    std::string side; // "bf16", "int8", "int4"
    int64_t batch;
    double first_seconds, tokens_per_second, decoded_per_second; // the second without the time to the first token
    double ratio;                                                // of decoded_per_second to that of plain weights
  };
  std::vector<Size> sizes;
  std::vector<Product> products;
  std::vector<Speed> speeds;
  std::vector<Loss> losses;

  nlohmann::ordered_json json() const;
};

using QuantProgress = std::function<void(const std::string& what, int64_t done, int64_t all)>;
QuantReport measure_quant(const QuantRequest& request, Registry& registry, const QuantProgress& progress);

} // namespace fvlm::bench
