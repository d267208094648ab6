// What the settings of connectors that make a decoder row of every square of factor x factor patches have in common.
#pragma once
#include "base/config_reader.h"
#include "recipe/connector_settings.h"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <array>

namespace fvlm::connector {

struct SquaresOfPatches : plan::ConnectorSettings {
  std::vector<plan::ConnectorMode> modes() const override {
    return {{"patches", "one pass", "one pass over the patches of every image"}};
  }
  int64_t rows_per_frame(const TokensPerFrame& tokens) const override {
    return std::max<int64_t>(1, tokens() / (factor * factor));
  }
  bool rows_in_place() const override { return true; }
  nlohmann::json config_json() const override { return {{"factor", factor}}; }
  void read_config(ConfigReader& reader) override {
    reader.refuse_unknown(std::array{"kind", "factor"});
    factor = reader.whole("factor", std::nullopt, 1, 64);
  }

  static constexpr const char* factor_doc =
      "Patches along each side of a square; a frame's patches have to be divisible by it in both directions.";
  int64_t factor = 2;
};

} // namespace fvlm::connector
