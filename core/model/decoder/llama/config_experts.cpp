// Of decoders whose MLPs are mixtures of experts.
#include "model/decoder/llama/config.h"

#include <fmt/format.h>

#include <algorithm>

namespace fvlm::llama {
namespace {

constexpr int64_t most_experts = 1 << 14;
constexpr const char *sparse_key = "decoder_sparse_step", *dense_key = "mlp_only_layers",
                     *first_dense_key = "num_dense_layers", *shared_key = "shared_expert_intermediate_size",
                     *loss_key = "output_router_logits", *norm_key = "norm_topk_prob", *bias_key = "use_expert_bias",
                     *scale_key = "routed_scaling_factor";

// How a config says which layers are dense: by number, as so many at the beginning, or not at all.
enum class Dense { by_number, first, none };
struct Defaults {
  const char* model_type;
  int64_t experts, chosen, width, shared_width;
  Dense dense;
  bool says_norm;  // whether weights are divided by their sum, as they are elsewhere
  bool normalizes; // where its key is missing
};
constexpr Defaults all_defaults[] = {{qwen3_moe, 128, 8, 768, 0, Dense::by_number, true, false},
                                     {qwen3_vl_moe, 60, 4, 1408, 0, Dense::by_number, false, true},
                                     {qwen3_5_moe, 256, 8, 512, 512, Dense::none, false, true},
                                     {lfm2_moe, 32, 4, 1792, 0, Dense::first, true, true}};

std::vector<int64_t> read_expert_layers(ConfigReader& config, Dense form, int64_t count) {
  const bool is_by_number = form == Dense::by_number;
  const int64_t step = is_by_number ? config.whole(sparse_key, 1, 1, most_layers) : 1,
                first = form == Dense::first ? config.whole(first_dense_key, 2, 0, most_layers) : 0;
  const std::vector<int64_t> dense = is_by_number ? config.wholes(dense_key, {}) : std::vector<int64_t>();
  std::vector<int64_t> layers;
  for (int64_t i = 0; i < count; ++i)
    layers.push_back(i >= first && (i + 1) % step == 0 && std::ranges::count(dense, i) == 0);
  return layers;
}

void write_expert_layers(const DecoderConfig& config, Dense form, nlohmann::json& out) {
  if (form == Dense::first)
    out[first_dense_key] = std::ranges::find(config.expert_layers, 1) - config.expert_layers.begin();
  if (form != Dense::by_number) return;
  out[sparse_key] = 1;
  out[dense_key] = nlohmann::json::array();
  for (int64_t i = 0; i < config.num_hidden_layers; ++i)
    if (!config.has_experts(i)) out[dense_key].push_back(i);
}

} // namespace

void read_experts(ConfigReader& config, DecoderConfig& out) {
  const auto* found = std::ranges::find(all_defaults, std::string_view(out.model_type), &Defaults::model_type);
  if (found == std::end(all_defaults)) return;
  const char* count_key = config.has("num_local_experts") ? "num_local_experts" : "num_experts";
  out.num_experts = config.whole(count_key, found->experts, 1, most_experts);
  out.num_experts_per_tok = config.whole("num_experts_per_tok", found->chosen, 1, most_experts);
  out.moe_intermediate_size = config.whole("moe_intermediate_size", found->width, 1, most_features);
  if (found->shared_width > 0)
    out.shared_expert_intermediate_size = config.whole(shared_key, found->shared_width, 1, most_features);
  out.norm_topk_prob = found->says_norm ? config.flag(norm_key, found->normalizes) : found->normalizes;
  out.expert_layers = read_expert_layers(config, found->dense, out.num_hidden_layers);
  if (out.model_type == lfm2_moe) {
    out.sigmoid_router = true;
    out.use_expert_bias = config.flag(bias_key, true);
    out.topk_sum_epsilon = 1e-6;
    out.routed_scaling_factor = config.number(scale_key, 1, 1e-6, 1e6);
  }
  if (out.num_experts_per_tok > out.num_experts)
    config.problems().add("'num_experts_per_tok' = {} is more than the {} experts of '{}'", out.num_experts_per_tok,
                          out.num_experts, count_key);
  config.refuse_unless(!config.flag(loss_key, false), loss_key,
                       "routers are trained without an auxiliary loss; set it to false");
}

void write_experts(const DecoderConfig& config, nlohmann::json& out) {
  const auto* found = std::ranges::find(all_defaults, std::string_view(config.model_type), &Defaults::model_type);
  if (found == std::end(all_defaults)) return;
  out["num_experts"] = config.num_experts;
  out["num_experts_per_tok"] = config.num_experts_per_tok;
  out["moe_intermediate_size"] = config.moe_intermediate_size;
  out[loss_key] = false;
  if (found->shared_width > 0) out[shared_key] = config.shared_expert_intermediate_size;
  if (found->says_norm) out[norm_key] = config.norm_topk_prob;
  write_expert_layers(config, found->dense, out);
  if (config.model_type != lfm2_moe) return;
  out[bias_key] = config.use_expert_bias;
  out[scale_key] = config.routed_scaling_factor;
}

ExpertNames expert_names(const DecoderConfig& config) {
  const TensorNames words = names_of(config);
  ExpertNames names;
  for (int64_t i = 0; i < config.num_experts; ++i) {
    const auto name = [&](const char* word) { return fmt::format("{}{}.{}.weight", words.experts, i, word); };
    names.gate_up.push_back(name(words.expert_gate));
    names.gate_up.push_back(name(words.expert_up));
    names.down.push_back(name(words.expert_down));
  }
  return names;
}

void add_experts(WeightLayout& layout, const DecoderConfig& config, const std::string& stem, const Initializer& inner,
                 const Initializer& last) {
  const TensorNames names = names_of(config);
  const int64_t width = config.hidden_size, shared = config.shared_expert_intermediate_size;
  const auto add = [&](const std::string& name, int64_t rows, int64_t columns, const Initializer& fill,
                       const std::string& stack = {}) {
    layout.tensors.push_back({.name = stem + name, .shape = {rows, columns}, .fill = fill, .stack = stack});
  };
  add(names.router + std::string(".weight"), config.num_experts, width, inner);
  if (config.use_expert_bias)
    layout.tensors.push_back({.name = stem + names.expert_bias, .shape = {config.num_experts}, .is_fixed = true});
  const auto [gate_up, down] = expert_names(config);
  for (const std::string& name : gate_up) add(name, config.moe_intermediate_size, width, inner, stem + "gate_up");
  for (const std::string& name : down) add(name, width, config.moe_intermediate_size, last, stem + "down");
  if (shared == 0) return;
  add(names.shared_gate + std::string(".weight"), 1, width, inner);
  add(names.shared + std::string("gate_proj.weight"), shared, width, inner);
  add(names.shared + std::string("up_proj.weight"), shared, width, inner);
  add(names.shared + std::string("down_proj.weight"), width, shared, last);
}

} // namespace fvlm::llama
