// A workshop that runs the program as a user would.
#pragma once
#include "../shell.h"
#include "workshop.h"

namespace fvlm::test {

class EngineWorkshop : public Workshop {
 protected:
  // HOME and the caches are in the workshop, so that the user's own lock file has no effect.
  Ran engine(const std::string& arguments, const std::string& environment = "") {
    std::string command = fmt::format(
        "cd '{0}' && env -u FVLM_PLUGIN_PATH HOME='{0}' XDG_CONFIG_HOME='{0}/config' FVLM_CACHE='{0}/cache' {1} "
        "'{2}' {3}",
        root().string(), environment, FVLM_TEST_ENGINE, arguments);
    return shell(command);
  }
  std::string directory() { return "--plugin-dir '" + plugins().string() + "'"; }
  fs::path user_lock() { return root() / "config" / "fvlm-engine" / "plugins.lock"; }
};

} // namespace fvlm::test
