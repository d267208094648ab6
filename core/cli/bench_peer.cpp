#include "cli/bench_peer.h"

#include "base/file.h"
#include "base/log.h"
#include "cli/torch_library.h"

#include <fmt/format.h>

namespace fvlm::cli {
namespace {

namespace fs = std::filesystem;

std::string peer_of_the_checkout(const std::string& tool) {
  const fs::path path = (program_folder() / "../../.." / tool).lexically_normal();
  std::error_code ignored;
  if (!fs::exists(path, ignored)) return "";
  const fs::path python = (find_torch().folder / "../../../../bin/python").lexically_normal();
  return fmt::format("'{}' '{}'", fs::exists(python, ignored) ? python.string() : "python3", path.string());
}

} // namespace

Options& with_peer_option(Options& options, const std::string& tool) {
  return options.value("peer", "COMMAND",
                       fmt::format("the program to measure against; default {} of the source tree;\n"
                                   "                    none: the engine alone",
                                   tool));
}

std::string peer_of(const ParsedOptions& parsed, const std::string& tool) {
  if (const auto wanted = parsed.value("peer")) return *wanted == "none" ? "" : *wanted;
  const std::string peer = peer_of_the_checkout(tool);
  if (peer.empty())
    log_warning("there is no peer: {} is not beside this program's build; --peer COMMAND names one", tool);
  return peer;
}

} // namespace fvlm::cli
