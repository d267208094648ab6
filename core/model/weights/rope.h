// Rotary positions of a decoder as its config.json describes them: the base and the scaling that lets positions reach
// beyond the length that the model was first trained at.
#pragma once
#include <nlohmann/json_fwd.hpp>

#include <cstdint>
#include <optional>
#include <vector>

namespace fvlm {

class ConfigReader;

// The fields are called as in transformers' `rope_parameters`.
struct RopeScaling {
  enum class Type { none, linear, llama3, yarn, alpha, proportional };
  Type type = Type::none;
  double factor = 1;
  int64_t original_max_position_embeddings = 0;     // llama3, yarn
  double low_freq_factor = 0, high_freq_factor = 0; // llama3
  double beta_fast = 0, beta_slow = 0;              // yarn
  bool truncate = true;                             // yarn: whether the range between those is of whole dimensions
  double alpha = 0;                                 // alpha: the base grows by alpha^(dim / (dim - 2))
  double attention_factor = 1;                      // yarn: of the rotated queries and keys
  double rotated_part = 1;                          // proportional: of all pairs the leading ones that are rotated
  // yarn of Ministral 3: queries are multiplied by 1 + beta * log(1 + position / original positions), the quotient
  // rounded down.
  std::optional<double> llama_4_scaling_beta;

  bool operator==(const RopeScaling&) const = default;
};

struct Rope {
  static constexpr double default_theta = 10000;
  double theta = default_theta;
  RopeScaling scaling;
  std::vector<int64_t> mrope_section = {}; // see DecoderConfig
  bool mrope_interleaved = false;
  double partial_rotary_factor = 1;
  bool may_rotate_part = false; // whether a config may say another factor than 1
  bool may_have_alpha = false;  // whether a dynamic scaling may have an alpha, and is then the same for all lengths
};

// From `rope_parameters`, as transformers 5 writes it, or `rope_theta` and `rope_scaling` of older versions. What is
// wrong or not supported is noted in the reader. `defaults`: the family's, whose rows have positions on three axes
// where there is a section.
Rope read_rope(ConfigReader& config, int64_t max_position_embeddings, const Rope& defaults);
// The same where layers with a sliding window have rotary positions of their own, which are not scaled: from
// `rope_parameters` by the type of the layer, or the older keys with `rope_local_base_freq`. `local_theta`: in, the
// family's base of these layers; out, what config.json says.
Rope read_rope_by_layer(ConfigReader& config, int64_t max_position_embeddings, const Rope& defaults,
                        double& local_theta);
// Where layers with full attention are rotated proportionally, and those with a sliding window by plain positions:
// `rope_parameters` of one type of layer. `full`: in, the family's; out, what config.json says.
void read_proportional_rope(ConfigReader& config, Rope& full);
void read_sliding_rope(ConfigReader& config, double& theta);
void write_proportional_rope(nlohmann::json& config, const Rope& full, double sliding_theta);
// Writes the older keys, which all versions read.
void write_rope(nlohmann::json& config, const Rope& rope);

// Radians per position of each pair of dimensions that are rotated: [rotary_dim / 2].
std::vector<double> rope_frequencies(const Rope& rope, int64_t rotary_dim);

} // namespace fvlm
