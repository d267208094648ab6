#include "base/error.h"
#include "base/problems.h"
#include "base/text.h"
#include "gguf/names.h"
#include "gguf/parts.h"
#include "model/weights/end_tokens.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace fvlm::gguf {
namespace {

// What llama.cpp can have of a family: a model that was trained otherwise would answer otherwise.
enum class Head { any, tied, separate };
struct DecoderFamily {
  const char *model_type, *architecture; // ours, and llama.cpp's
  bool neighbours = false;               // rotary positions turn neighbouring features
  bool as_llama = false;                 // all linears may have biases, and rotary positions Llama 3's scaling
  bool whole_heads = false;              // head_dim is hidden_size / num_attention_heads
  Head head = Head::any;
  int64_t window_every = 0; // layers without a sliding window, which the others have; 0: none has one
};

constexpr DecoderFamily decoder_families[] = {
    {.model_type = "llama", .architecture = "llama", .neighbours = true, .as_llama = true},
    {.model_type = "mistral", .architecture = "llama", .neighbours = true, .as_llama = true},
    {.model_type = "ministral3", .architecture = "mistral3", .neighbours = true},
    {.model_type = "smollm3", .architecture = "smollm3", .neighbours = true},
    {.model_type = "granite", .architecture = "granite", .neighbours = true, .as_llama = true},
    {.model_type = "olmo2", .architecture = "olmo2", .whole_heads = true, .head = Head::separate},
    {.model_type = "gemma", .architecture = "gemma", .head = Head::tied},
    {.model_type = "gemma2", .architecture = "gemma2", .head = Head::tied, .window_every = 2},
    {.model_type = "gemma3_text", .architecture = "gemma3", .window_every = 6},
    {.model_type = "qwen2", .architecture = "qwen2", .whole_heads = true},
    {.model_type = "qwen3", .architecture = "qwen3"},
    {.model_type = "qwen2_vl_text", .architecture = "qwen2vl", .whole_heads = true},
    {.model_type = "qwen2_5_vl_text", .architecture = "qwen2vl", .whole_heads = true},
    {.model_type = "qwen3_vl_text", .architecture = "qwen3vl"},
};

constexpr Name decoder_layer_names[] = {{"input_layernorm", "attn_norm"},
                                        {"self_attn.q_proj", "attn_q"},
                                        {"self_attn.k_proj", "attn_k"},
                                        {"self_attn.v_proj", "attn_v"},
                                        {"self_attn.q_norm", "attn_q_norm"},
                                        {"self_attn.k_norm", "attn_k_norm"},
                                        {"self_attn.o_proj", "attn_output"},
                                        {"pre_feedforward_layernorm", "ffn_norm"},
                                        {"post_feedforward_layernorm", "post_ffw_norm"},
                                        {"mlp.gate_proj", "ffn_gate"},
                                        {"mlp.up_proj", "ffn_up"},
                                        {"mlp.down_proj", "ffn_down"}};
// Where branches are normalized behind, too, the norm ahead of the MLP has another name.
constexpr Name usual_norm[] = {{"post_attention_layernorm", "ffn_norm"}},
               norm_behind[] = {{"post_attention_layernorm", "post_attention_norm"}};
constexpr Name decoder_names[] = {
    {"model.embed_tokens", "token_embd"}, {"model.norm", "output_norm"}, {"lm_head", "output"}};

std::string decoder_name(const std::string& module, const DecoderConfig& config) {
  const std::span<const Name> norm = config.post_norms ? norm_behind : usual_norm;
  for (const auto& found : {theirs_of(module, decoder_names), layer_name(module, "model.layers.", "blk.", norm),
                            layer_name(module, "model.layers.", "blk.", decoder_layer_names)})
    if (found) return *found;
  throw Error(ErrorKind::internal, "the decoder's {} has no name in GGUF", module);
}

const DecoderFamily& decoder_family_of(const DecoderConfig& config, const std::string& where) {
  std::vector<std::string> known;
  for (const DecoderFamily& family : decoder_families) {
    if (config.model_type == family.model_type) return family;
    known.emplace_back(family.model_type);
  }
  throw Error(ErrorKind::data, "decoders of the type {} are not written to GGUF", shown(config.model_type))
      .at(where)
      .advise("those that are: {}; `fvlm-engine serve` and `export` without --gguf take any", join(known, ", "));
}

// Which layers have a window in llama.cpp, unless the file says otherwise.
bool has_usual_windows(const DecoderConfig& config, const DecoderFamily& family) {
  for (int64_t i = 0; i < config.num_hidden_layers; ++i)
    if (config.has_window(i) != ((i + 1) % family.window_every != 0)) return false;
  return true;
}

// By how much the scores of the Gemmas with this many layers are multiplied.
double usual_attention_scale(const DecoderConfig& config) {
  const bool largest = config.num_hidden_layers == (config.model_type == "gemma2" ? 46 : 62);
  return 1 /
         std::sqrt(static_cast<double>(largest ? config.hidden_size / config.num_attention_heads : config.head_dim));
}

void check_decoder(const DecoderConfig& config, const DecoderFamily& family, Problems& problems) {
  const auto refuse = [&](bool wrong, const std::string& what) {
    if (wrong) problems.add("{}", what);
  };
  refuse((config.out_bias || config.mlp_bias) && !family.as_llama,
         "linears of attention outputs or the MLP have biases");
  refuse(config.rope_scaling.type == RopeScaling::Type::llama3 && !family.as_llama,
         "rotary positions are scaled as in Llama 3");
  refuse(family.whole_heads && config.head_dim * config.num_attention_heads != config.hidden_size,
         fmt::format("{} heads of {} features are not the {} of a row", config.num_attention_heads, config.head_dim,
                     config.hidden_size));
  refuse(family.head == Head::tied && !config.tie_word_embeddings, "the output head is not the embedding");
  refuse(family.window_every == 0 && config.has_windows(), "layers have a sliding window");
  refuse(config.model_type == "gemma2" && !config.has_windows(), "no layer has a sliding window");
  refuse(config.model_type == "gemma2" && (config.attn_logit_softcapping == 0 || config.final_logit_softcapping == 0),
         "scores or logits have no bound");
  refuse(family.window_every > 0 && std::abs(config.attention_multiplier / usual_attention_scale(config) - 1) > 1e-6,
         fmt::format("'query_pre_attn_scalar' is not {}", std::llround(std::pow(usual_attention_scale(config), -2))));
  if (config.model_type == "smollm3")
    for (int64_t i = 0; i < config.num_hidden_layers; ++i)
      if (config.has_rope(i) != ((i + 1) % 4 != 0)) {
        refuse(true, "other layers than every fourth have no rotary positions");
        break;
      }
  refuse(config.rope_scaling.type == RopeScaling::Type::yarn && !config.rope_scaling.truncate,
         "YaRN's range is not of whole dimensions ('truncate' is false)");
}

class DecoderKeys {
 public:
  DecoderKeys(File& file, const DecoderConfig& config, const DecoderFamily& family)
      : file_(file), config_(config), family_(family) {}

  void add() {
    file_.set("general.architecture", std::string(family_.architecture));
    size("vocab_size", config_.vocab_size);
    size("context_length", config_.max_position_embeddings);
    size("embedding_length", config_.hidden_size);
    size("block_count", config_.num_hidden_layers);
    size("feed_forward_length", config_.intermediate_size);
    size("attention.head_count", config_.num_attention_heads);
    size("attention.head_count_kv", config_.num_key_value_heads);
    size("attention.key_length", config_.head_dim);
    size("attention.value_length", config_.head_dim);
    number("attention.layer_norm_rms_epsilon", config_.rms_norm_eps);
    size("rope.dimension_count", config_.head_dim);
    number("rope.freq_base", config_.rope_theta);
    if (config_.has_row_axes()) add_sections();
    add_scaling();
    add_windows();
    if (config_.attn_logit_softcapping != 0) number("attn_logit_softcapping", config_.attn_logit_softcapping);
    if (config_.final_logit_softcapping != 0) number("final_logit_softcapping", config_.final_logit_softcapping);
    if (config_.model_type == "granite") {
      number("attention.scale", config_.attention_multiplier);
      number("embedding_scale", config_.embedding_multiplier);
      number("residual_scale", config_.residual_multiplier);
      number("logit_scale", config_.logits_scaling);
    }
  }

 private:
  void set(const std::string& key, Value value) {
    file_.set(fmt::format("{}.{}", family_.architecture, key), std::move(value));
  }
  void size(const std::string& key, int64_t value) { set(key, static_cast<uint32_t>(value)); }
  void number(const std::string& key, double value) { set(key, static_cast<float>(value)); }

  void add_sections() {
    std::vector<int32_t> sections(config_.mrope_section.begin(), config_.mrope_section.end());
    sections.resize(4); // there is room for one axis more
    set("rope.dimension_sections", std::move(sections));
  }

  // Llama 3's is a tensor.
  void add_scaling() {
    const RopeScaling& scaling = config_.rope_scaling;
    const bool yarn = scaling.type == RopeScaling::Type::yarn;
    if (!yarn && scaling.type != RopeScaling::Type::linear) return;
    set("rope.scaling.type", std::string(yarn ? "yarn" : "linear"));
    number("rope.scaling.factor", scaling.factor);
    if (!yarn) return;
    size("rope.scaling.original_context_length", scaling.original_max_position_embeddings);
    number("rope.scaling.yarn_beta_fast", scaling.beta_fast);
    number("rope.scaling.yarn_beta_slow", scaling.beta_slow);
    // On top of what llama.cpp makes of the scaling's factor.
    number("rope.scaling.attn_factor", scaling.attention_factor / (1 + 0.1 * std::log(scaling.factor)));
    if (scaling.llama_4_scaling_beta) number("attention.temperature_scale", *scaling.llama_4_scaling_beta);
  }

  void add_windows() {
    if (!config_.has_windows()) return;
    size("attention.sliding_window", config_.sliding_window);
    if (config_.local_rope_theta) number("rope.freq_base_swa", *config_.local_rope_theta);
    if (!has_usual_windows(config_, family_))
      set("attention.sliding_window_pattern",
          std::vector<bool>(config_.sliding_layers.begin(), config_.sliding_layers.end()));
  }

  File& file_;
  const DecoderConfig& config_;
  const DecoderFamily& family_;
};

// By how much the frequency of each pair of features is divided.
Tensor rope_divisors(const DecoderConfig& config) {
  const auto plain = rope_frequencies({.theta = config.rope_theta}, config.head_dim),
             scaled = rope_frequencies({.theta = config.rope_theta, .scaling = config.rope_scaling}, config.head_dim);
  std::vector<float> divisors;
  for (size_t i = 0; i < plain.size(); ++i) divisors.push_back(static_cast<float>(plain[i] / scaled[i]));
  const std::vector<int64_t> shape{static_cast<int64_t>(divisors.size())};
  return {"rope_freqs.weight", shape, &f32, [divisors](uint64_t first, std::span<float> out) {
            std::copy_n(divisors.begin() + static_cast<std::ptrdiff_t>(first), out.size(), out.begin());
          }};
}

} // namespace

const ElementType& fitting_type(const ElementType& type, const std::vector<int64_t>& shape) {
  if (shape.size() < 2) return f32;
  return shape.back() % type.block == 0 ? type : f16;
}

File decoder_file(const ModelDirectory& model, const ElementType& type) {
  const ModelPart& part = model.description().sole_part(Role::decoder);
  const auto& config = std::get<DecoderConfig>(part.config);
  const std::string where = (part.folder.path / "config.json").string();
  const DecoderFamily& family = decoder_family_of(config, where);
  Problems problems;
  check_decoder(config, family, problems);
  problems.raise(where, fmt::format("llama.cpp's {} cannot have this; `fvlm-engine serve` and `export` without --gguf "
                                    "take the model as it is",
                                    family.architecture));

  File file{"model.gguf", {}, {}};
  DecoderKeys(file, config, family).add();
  file.set("general.type", std::string("model"));
  file.set("general.name", model.description().name);
  file.set("general.file_type", type.file_type);
  file.set("general.quantization_version", uint32_t{2});
  add_tokenizer(file, part.folder.path, config.vocab_size, end_tokens(part.folder.path, config.eos_token_id));

  // Tokens and logits suffer the most from few bits.
  const ElementType& of_tokens = type.is_quantized() ? q8_0 : type;
  for (const Parameter& parameter : model.parameters()) {
    if (&model.description().parts[parameter.part] != &part) continue;
    const std::string own = parameter.name.substr(part.name.size() + 1), module = own.substr(0, own.rfind('.'));
    const bool is_query = module.ends_with("self_attn.q_proj"), is_key = module.ends_with("self_attn.k_proj");
    Read read = family.neighbours && (is_query || is_key)
                    ? neighbours(*parameter.view, is_query ? config.num_attention_heads : config.num_key_value_heads)
                    : numbers_of(*parameter.view);
    if (config.unit_offset && module.ends_with("norm")) read = shifted(std::move(read), 1);
    const bool reads_tokens = module == "model.embed_tokens" || module == "lm_head";
    const std::vector<int64_t>& shape = parameter.view->shape;
    file.tensors.push_back({decoder_name(module, config) + own.substr(own.rfind('.')), shape,
                            &fitting_type(reads_tokens ? of_tokens : type, shape), std::move(read)});
  }
  if (config.tie_word_embeddings && family.head == Head::separate) {
    Tensor head = file.tensors.front(); // the embedding
    head.name = "output.weight";
    file.tensors.push_back(std::move(head));
  }
  if (config.rope_scaling.type == RopeScaling::Type::llama3) file.tensors.push_back(rope_divisors(config));
  return file;
}

} // namespace fvlm::gguf
