#include "model/connector/settings.h"

#include "base/error.h"
#include "base/text.h"

#include <algorithm>

namespace fvlm {
namespace connector {

#define FVLM_CONNECTOR(name) Settings name##_settings();
#include "model/connector/connectors.inc"
#undef FVLM_CONNECTOR

std::vector<Settings>& all_settings() {
  static std::vector<Settings> all = {
#define FVLM_CONNECTOR(name) name##_settings(),
#include "model/connector/connectors.inc"
#undef FVLM_CONNECTOR
  };
  return all;
}

} // namespace connector

namespace plan {

Connector default_connector() {
  return Connector(connector::all_settings().front().make());
}

std::vector<std::string> ConnectorSettings::mode_names() const {
  std::vector<std::string> names;
  for (const ConnectorMode& mode : modes()) names.push_back(mode.name);
  return names;
}

std::string ConnectorSettings::inference_mode() const {
  const auto all = modes();
  const auto found =
      std::find_if(all.begin(), all.end(), [](const ConnectorMode& mode) { return !mode.has_gradients; });
  return (found == all.end() ? all.front() : *found).name;
}

std::vector<std::string> ConnectorSettings::training_mode_names() const {
  std::vector<std::string> names;
  for (const ConnectorMode& mode : modes())
    if (!mode.training_doc.empty()) names.push_back(mode.name);
  return names;
}

std::optional<int64_t> ConnectorSettings::known_rows_per_frame() const {
  bool is_known = true;
  const int64_t rows = rows_per_frame([&]() -> int64_t {
    is_known = false;
    return 1;
  });
  return is_known ? std::optional(rows) : std::nullopt;
}

std::string ConnectorSettings::select_mode(std::string_view word) {
  const auto names = mode_names();
  if (word.empty()) return names.front();
  if (std::find(names.begin(), names.end(), word) != names.end()) return std::string(word);
  throw Error(ErrorKind::usage, "the connector fvlm.{} has no mode '{}'", name(), word).advise("use " + join_or(names));
}

} // namespace plan
} // namespace fvlm
