#include "base/error.h"
#include "gguf/decoder_families.h"
#include "gguf/parts.h"
#include "model/weights/generation_config.h"
#include "model/weights/packed_weight.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <memory>

namespace fvlm::gguf {
namespace {

constexpr Name layer_names[] = {{"input_layernorm", "attn_norm"},
                                {"self_attn.q_proj", "attn_q"},
                                {"self_attn.k_proj", "attn_k"},
                                {"self_attn.v_proj", "attn_v"},
                                {"self_attn.q_norm", "attn_q_norm"},
                                {"self_attn.k_norm", "attn_k_norm"},
                                {"self_attn.o_proj", "attn_output"},
                                {"post_attention_layernorm", "ffn_norm"},
                                {"pre_feedforward_layernorm", "ffn_norm"},
                                {"post_feedforward_layernorm", "post_ffw_norm"},
                                {"mlp.gate_proj", "ffn_gate"},
                                {"mlp.up_proj", "ffn_up"},
                                {"mlp.down_proj", "ffn_down"},
                                {"mlp.gate", "ffn_gate_inp"},
                                {"mlp.experts.gate_proj", "ffn_gate_exps"},
                                {"mlp.experts.up_proj", "ffn_up_exps"},
                                {"mlp.experts.down_proj", "ffn_down_exps"},
                                {"mlp.shared_expert_gate", "ffn_gate_inp_shexp"},
                                {"mlp.shared_expert.gate_proj", "ffn_gate_shexp"},
                                {"mlp.shared_expert.up_proj", "ffn_up_shexp"},
                                {"mlp.shared_expert.down_proj", "ffn_down_shexp"}};
constexpr Name decoder_names[] = {{"model.embed_tokens", "token_embd"},
                                  {"model.norm", "output_norm"},
                                  {"lm_head", "output"},
                                  {"model.embedding_norm", "token_embd_norm"}, // LFM2's last norm
                                  {"model.embed_tokens_per_layer", "per_layer_token_embd"},
                                  {"model.per_layer_model_projection", "per_layer_model_proj"},
                                  {"model.per_layer_projection_norm", "per_layer_proj_norm"}};

// "mlp.experts.down_proj" of "mlp.experts.5.down_proj": one tensor has the matrices of all.
std::string without_expert(std::string module) {
  constexpr std::string_view word = ".experts.";
  const size_t number = module.find(word) + word.size();
  return module.erase(number, module.find('.', number) + 1 - number);
}

std::string decoder_name(const std::string& of, const DecoderFamily& family) {
  const std::string module = is_of_expert(of) ? without_expert(of) : of;
  for (const auto& found : {theirs_of(module, decoder_names), layer_name(module, "model.layers.", "blk.", family.names),
                            layer_name(module, "model.layers.", "blk.", layer_names)})
    if (found) return *found;
  throw Error(ErrorKind::internal, "the decoder's {} has no name in GGUF", module);
}

// Which layers have a window in llama.cpp, unless the file says otherwise.
bool has_usual_windows(const DecoderConfig& config, const DecoderFamily& family) {
  for (int64_t i = 0; i < config.num_hidden_layers; ++i)
    if (config.has_window(i) != ((i + 1) % family.window_every != 0)) return false;
  return true;
}

// Llama 3's is a tensor.
void add_scaling(const DecoderConfig& config, DecoderKeys& keys) {
  const RopeScaling& scaling = config.rope_scaling;
  const bool yarn = scaling.type == RopeScaling::Type::yarn;
  if (!yarn && scaling.type != RopeScaling::Type::linear) return;
  keys.set("rope.scaling.type", std::string(yarn ? "yarn" : "linear"));
  keys.number("rope.scaling.factor", scaling.factor);
  if (!yarn) return;
  keys.size("rope.scaling.original_context_length", scaling.original_max_position_embeddings);
  keys.number("rope.scaling.yarn_beta_fast", scaling.beta_fast);
  keys.number("rope.scaling.yarn_beta_slow", scaling.beta_slow);
  // On top of what llama.cpp makes of the scaling's factor.
  keys.number("rope.scaling.attn_factor", scaling.attention_factor / (1 + 0.1 * std::log(scaling.factor)));
  if (scaling.llama_4_scaling_beta) keys.number("attention.temperature_scale", *scaling.llama_4_scaling_beta);
}

void add_windows(const DecoderConfig& config, const DecoderFamily& family, DecoderKeys& keys) {
  if (config.local_rope_theta) keys.number("rope.freq_base_swa", *config.local_rope_theta);
  if (family.has_own_windows || !config.has_windows()) return;
  keys.size("attention.sliding_window", config.sliding_window);
  if (!has_usual_windows(config, family))
    keys.set("attention.sliding_window_pattern",
             std::vector<bool>(config.sliding_layers.begin(), config.sliding_layers.end()));
}

void add_keys(File& file, const DecoderConfig& config, const DecoderFamily& family) {
  file.set("general.architecture", std::string(family.architecture));
  DecoderKeys keys{file, family.architecture};
  keys.size("vocab_size", config.vocab_size);
  keys.size("context_length", config.max_position_embeddings);
  keys.size("embedding_length", config.hidden_size);
  keys.size("block_count", config.num_hidden_layers);
  keys.size("feed_forward_length", config.intermediate_size);
  keys.size("attention.head_count", config.num_attention_heads);
  keys.size("attention.head_count_kv", config.num_key_value_heads);
  keys.size("attention.key_length", config.head_dim);
  keys.size("attention.value_length", config.head_dim);
  keys.number("attention.layer_norm_rms_epsilon", config.rms_norm_eps);
  keys.size("rope.dimension_count", config.rotary_dim());
  keys.number("rope.freq_base", config.rope_theta);
  if (config.has_row_axes()) {
    std::vector<int32_t> sections(config.mrope_section.begin(), config.mrope_section.end());
    sections.resize(4); // there is room for one axis more
    keys.set("rope.dimension_sections", std::move(sections));
  }
  if (config.num_experts > 0) {
    keys.size("expert_count", config.num_experts);
    keys.size("expert_used_count", config.num_experts_per_tok);
    keys.size("expert_feed_forward_length", config.moe_intermediate_size);
  }
  if (config.shared_expert_intermediate_size > 0)
    keys.size("expert_shared_feed_forward_length", config.shared_expert_intermediate_size);
  add_scaling(config, keys);
  add_windows(config, family, keys);
  if (config.attn_logit_softcapping != 0) keys.number("attn_logit_softcapping", config.attn_logit_softcapping);
  if (config.final_logit_softcapping != 0) keys.number("final_logit_softcapping", config.final_logit_softcapping);
  if (family.add_keys) family.add_keys(config, keys);
}

// By how much the frequency of each pair of features is divided, where it is not by the positions' scaling alone.
// Nothing: by 1.
std::optional<Tensor> rope_divisors(const DecoderConfig& config) {
  std::vector<float> divisors;
  if (config.rope_scaling.type == RopeScaling::Type::llama3) {
    const auto plain = rope_frequencies({.theta = config.rope_theta}, config.head_dim),
               scaled = rope_frequencies({.theta = config.rope_theta, .scaling = config.rope_scaling}, config.head_dim);
    for (size_t i = 0; i < plain.size(); ++i) divisors.push_back(static_cast<float>(plain[i] / scaled[i]));
  } else if (config.global_head_dim > 0) { // of layers without a window, whose last pairs are not rotated
    divisors.assign(static_cast<size_t>(config.global_head_dim / 2), 1e30F);
    const double rotated = static_cast<double>(config.global_head_dim) * config.rope_scaling.rotated_part / 2;
    std::fill_n(divisors.begin(), static_cast<std::ptrdiff_t>(rotated), 1.0F);
  } else {
    return std::nullopt;
  }
  const std::vector<int64_t> shape{static_cast<int64_t>(divisors.size())};
  return Tensor{"rope_freqs.weight", shape, &f32, [divisors](uint64_t first, std::span<float> out) {
                  std::copy_n(divisors.begin() + static_cast<std::ptrdiff_t>(first), out.size(), out.begin());
                }};
}

// A parameter under its own name, "model.norm.weight".
Tensor tensor_of(const DecoderConfig& config, const DecoderFamily& family, const std::string& own,
                 const TensorView& view) {
  const size_t dot = own.rfind('.');
  const std::string last = own.substr(dot + 1);
  const bool has_suffix = last == "weight" || last == "bias";
  const std::string module = has_suffix ? own.substr(0, dot) : own, name = decoder_name(module, family) + "." +
                                                                           (has_suffix               ? last
                                                                            : last == "layer_scalar" ? "weight"
                                                                                                     : last);
  if (family.tensor)
    if (auto found = family.tensor(config, name, view)) return *std::move(found);
  const bool is_query = module.ends_with("self_attn.q_proj"), is_key = module.ends_with("self_attn.k_proj");
  Tensor out{name, view.shape, nullptr, numbers_of(view)};
  if (name.ends_with(".ffn_gate_inp.weight")) out.type = &f32; // the router
  if (name.ends_with(".ffn_gate_inp_shexp.weight")) out.shape = {view.shape.back()};
  if (is_query || is_key) {
    const int64_t heads = is_query ? config.num_attention_heads : config.num_key_value_heads;
    if (family.pairs == DecoderFamily::Pairs::adjacent) out.read = neighbours(view, heads);
    if (family.pairs == DecoderFamily::Pairs::apart) out.read = halves(view, heads, config.rotary_dim());
  }
  if (config.unit_offset && module.ends_with("norm") && !module.ends_with("linear_attn.norm"))
    out.read = shifted(std::move(out.read), 1);
  return out;
}

// Tensors of one expert each, [rows, columns], in the order of the experts, as one, [experts, rows, columns].
class ExpertStacks {
 public:
  // What is to be written where the tensor is the first of its name.
  std::optional<Tensor> add(Tensor tensor) {
    auto& parts = parts_[tensor.name];
    if (parts) {
      parts->push_back(std::move(tensor.read));
      return std::nullopt;
    }
    parts = std::make_shared<std::vector<Read>>(1, std::move(tensor.read));
    tensor.read = [parts, each = static_cast<uint64_t>(tensor.elements())](uint64_t first, std::span<float> out) {
      while (!out.empty()) {
        const uint64_t begin = first % each, count = std::min<uint64_t>(each - begin, out.size());
        (*parts)[first / each](begin, out.first(count));
        out = out.subspan(count);
        first += count;
      }
    };
    tensor.shape.insert(tensor.shape.begin(), experts_);
    return tensor;
  }
  explicit ExpertStacks(int64_t experts) : experts_(experts) {}

 private:
  int64_t experts_;
  std::map<std::string, std::shared_ptr<std::vector<Read>>> parts_;
};

} // namespace

const ElementType& fitting_type(const ElementType& type, const std::vector<int64_t>& shape) {
  if (shape.size() < 2) return f32;
  return shape.back() % type.block == 0 ? type : f16;
}

File decoder_file(const ModelDirectory& model, const ElementType& type) {
  const ModelPart& part = model.description().sole_part(Role::decoder);
  const auto& config = std::get<DecoderConfig>(part.config);
  const DecoderFamily& family = decoder_family_of(config, (part.folder.path / "config.json").string());

  File file{"model.gguf", {}, {}};
  add_keys(file, config, family);
  if (const size_t layers = model.description().encoder().deepstack_visual_indexes.size(); layers > 0)
    DecoderKeys{file, family.architecture}.size("n_deepstack_layers", static_cast<int64_t>(layers));
  file.set("general.type", std::string("model"));
  file.set("general.name", model.description().name);
  file.set("general.file_type", type.file_type);
  file.set("general.quantization_version", uint32_t{2});
  add_tokenizer(file, part.folder.path, config.vocab_size, end_tokens(part.folder.path, config.eos_token_id));

  // Tokens and logits suffer the most from few bits.
  const ElementType& of_tokens = type.is_quantized() ? q8_0 : type;
  ExpertStacks stacks(config.num_experts);
  for (const Parameter& parameter : model.parameters()) {
    if (&model.description().parts[parameter.part] != &part) continue;
    const std::string own = parameter.name.substr(part.name.size() + 1);
    Tensor tensor = tensor_of(config, family, own, *parameter.view);
    const bool reads_tokens = own.starts_with("model.embed_tokens") || own.starts_with("lm_head.");
    if (!tensor.type) tensor.type = &fitting_type(reads_tokens ? of_tokens : type, tensor.shape);
    if (!is_of_expert(own))
      file.tensors.push_back(std::move(tensor));
    else if (auto stack = stacks.add(std::move(tensor)))
      file.tensors.push_back(*std::move(stack));
  }
  if (config.tie_word_embeddings && family.head == DecoderFamily::Head::separate) {
    Tensor head = file.tensors.front(); // the embedding
    head.name = "output.weight";
    file.tensors.push_back(std::move(head));
  }
  if (auto divisors = rope_divisors(config)) file.tensors.push_back(*std::move(divisors));
  return file;
}

} // namespace fvlm::gguf
