// fvlm.json as it was before it listed parts.
#pragma once
#include <nlohmann/json.hpp>

#include <string>

namespace fvlm {

// The format 1 of an fvlm.json of a model with one encoder, one connector and one decoder.
inline std::string as_format_1(const std::string& text) {
  const auto json = nlohmann::ordered_json::parse(text);
  nlohmann::ordered_json out = {{"format_version", 1}, {"model", json["model"]}};
  for (const auto& part : json["parts"])
    if (part["role"] == "connector") out["connector"] = part["config"];
  for (const char* key : {"stage", "step", "plan_hash", "checksums"})
    if (json.contains(key)) out[key] = json[key];
  return out.dump(2) + "\n";
}

} // namespace fvlm
