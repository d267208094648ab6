// How the program was built, as `fvlm-engine --version` prints it.
#pragma once
#include <nlohmann/json.hpp>

#include <string>

namespace fvlm::cli {

std::string version_text(); // the first line is "fvlm-engine VERSION"
nlohmann::ordered_json version_json();

} // namespace fvlm::cli
