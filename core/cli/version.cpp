#include "cli/version.h"

#include "base/text.h"
#include "build_details.h"
#include "commit.h"
#include "plugin/kinds.h"

#include <fmt/format.h>

namespace fvlm::cli {
namespace {

std::string kinds() {
  std::vector<std::string> names;
  for (const Family& family : known_families()) names.emplace_back(family.name);
  return join(names, ", ");
}

std::string compiler() {
  const std::string sanitizers = FVLM_BUILD_SANITIZERS;
  return FVLM_BUILD_COMPILER + (sanitizers.empty() ? "" : ", sanitizers " + sanitizers);
}

} // namespace

nlohmann::ordered_json version_json() {
  auto kinds = nlohmann::ordered_json::array();
  for (const Family& family : known_families()) kinds.push_back(std::string(family.name));
  return {{"version", FVLM_VERSION}, {"commit", FVLM_BUILD_COMMIT},
          {"compiler", compiler()},  {"libtorch", FVLM_BUILD_TORCH},
          {"cuda", FVLM_BUILD_CUDA}, {"plugin_abi", fmt::format("{}.{}", FVLM_ABI_MAJOR, FVLM_ABI_MINOR)},
          {"plugin_kinds", kinds}};
}

std::string version_text() {
  return fmt::format("fvlm-engine {}\n"
                     "commit      {}\n"
                     "compiler    {}\n"
                     "LibTorch    {}\n"
                     "CUDA        {}\n"
                     "plugin ABI  {}.{}: {}\n",
                     FVLM_VERSION, FVLM_BUILD_COMMIT, compiler(), FVLM_BUILD_TORCH, FVLM_BUILD_CUDA, FVLM_ABI_MAJOR,
                     FVLM_ABI_MINOR, kinds());
}

} // namespace fvlm::cli
