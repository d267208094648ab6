#include "bench/verb_peer.h"

#include "base/error.h"
#include "base/file.h"
#include "base/log.h"
#include "cli/torch_library.h"
#include "plugin/trust.h"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>

namespace fvlm::cli {
namespace {

namespace fs = std::filesystem;

// Throws Error(plugin) where another user could change it: where the program is installed, this is no source tree but a
// folder that may be everybody's.
std::string source_tree_peer(const std::string& tool) {
  const fs::path path = (program_folder() / "../../.." / tool).lexically_normal();
  std::error_code ignored;
  if (!fs::exists(path, ignored)) return "";
  TrustPolicy policy;
  policy.also_owner_of = program_folder();
  check_trusted(path, policy);
  const fs::path python = (find_torch().folder / "../../../../bin/python").lexically_normal();
  return fmt::format("'{}' '{}'", fs::exists(python, ignored) ? python.string() : "python3", path.string());
}

// The same, but throws Error(usage) where the source tree is not there.
std::string required_source_tree_peer(const std::string& tool) {
  std::string peer = source_tree_peer(tool);
  if (peer.empty())
    throw Error(ErrorKind::usage, "{} was not found: this program does not run from a source tree", tool)
        .advise("give the peer as --peer COMMAND");
  return peer;
}

} // namespace

Options& with_peer_option(Options& options, const std::string& tool) {
  return options.value("peer", "COMMAND",
                       fmt::format("the program to compare with; default {} of the source tree;\n"
                                   "                    none: only the engine",
                                   tool));
}

std::string peer_of(const ParsedOptions& parsed, const std::string& tool) {
  if (const auto wanted = parsed.value("peer")) return *wanted == "none" ? "" : *wanted;
  const std::string peer = source_tree_peer(tool);
  if (peer.empty())
    log_warning("no peer: {} was not found, this program does not run from a source tree; give one as --peer COMMAND",
                tool);
  return peer;
}

const PeerScript training_peer{"tools/oracle/train-step",
                               {"eager", "graph", "compiled", "compiled-graph"},
                               "also measure PyTorch, with {} of the source\n"
                               "                    tree: eager; graph: one CUDA graph; compiled, which takes\n"
                               "                    minutes; compiled-graph; or another COMMAND"};
const PeerScript ragged_peer{"tools/oracle/train-ragged",
                             {"eager"},
                             "also measure PyTorch: eager, with {} of the source\n"
                             "                    tree; or another COMMAND"};
const PeerScript op_peer{"tools/oracle/time-op",
                         {"eager", "compiled"},
                         "also measure PyTorch's operations, with {} of the source\n"
                         "                    tree: eager; compiled, which is slow to start; or another COMMAND"};
const PeerScript generation_peer{"tools/oracle/time-generate",
                                 {"eager", "compiled"},
                                 "also measure transformers, with {} of the source\n"
                                 "                    tree: eager; compiled, which takes minutes; or another COMMAND"};

Options& with_peer_option(Options& options, const PeerScript& script) {
  return options.value("peer", "HOW", fmt::format(fmt::runtime(script.help), script.tool));
}

std::string peer_of(const ParsedOptions& parsed, const PeerScript& script) {
  const std::string wanted = parsed.value_or("peer", "none");
  if (wanted == "none") return "";
  if (std::ranges::find(script.modes, wanted) == script.modes.end()) return wanted;
  const std::string peer = required_source_tree_peer(script.tool);
  return script.modes.size() == 1 ? peer : fmt::format("{} --how {}", peer, wanted);
}

} // namespace fvlm::cli
