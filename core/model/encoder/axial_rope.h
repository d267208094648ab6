// What configs of encoders may say of rotary positions by line and by column.
#pragma once
#include "base/config_reader.h"
#include "model/weights/towers.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

namespace fvlm {

inline void check_axial_rope(ConfigReader& reader, const VisionConfig& config) {
  const double theta = config.rope_theta;
  if (const nlohmann::json* rope = reader.object("rope_parameters")) {
    const std::string type = rope->value("rope_type", "axial"); // older files have the other word for it
    const bool is_plain = (type == "axial" || type == "default") && rope->value("rope_theta", theta) == theta;
    reader.refuse_unless(is_plain, "rope_parameters", fmt::format("only the type axial with a theta of {} is", theta));
  }
  if (reader.has("rope_theta"))
    reader.refuse_unless(reader.number("rope_theta", theta, 1, 1e12) == theta, "rope_theta",
                         fmt::format("only {} is", theta));
  if (config.hidden_size % (4 * config.num_attention_heads))
    reader.problems().add("{} heads of a width of {} have no dimensions that two axes share evenly in pairs",
                          config.num_attention_heads, config.hidden_size);
}

} // namespace fvlm
