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

constexpr const char* training_peer = "tools/oracle/train-step";
constexpr const char* ragged_peer = "tools/oracle/train-ragged";
constexpr const char* op_peer = "tools/oracle/time-op";
constexpr const char* generation_peer = "tools/oracle/time-generate";

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

// The value of --peer is a mode of the source tree's script, or a command.
std::string peer_command(const ParsedOptions& parsed, const char* tool, std::initializer_list<std::string_view> modes) {
  const std::string wanted = parsed.value_or("peer", "none");
  if (wanted == "none") return "";
  if (std::ranges::find(modes, wanted) == modes.end()) return wanted;
  return fmt::format("{} --how {}", required_source_tree_peer(tool), wanted);
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

Options& with_training_peer_option(Options& options) {
  return options.value("peer", "HOW",
                       fmt::format("also measure PyTorch, with {} of the source\n"
                                   "                    tree: eager; graph: one CUDA graph; compiled, which takes\n"
                                   "                    minutes; compiled-graph; or another COMMAND",
                                   training_peer));
}

std::string training_peer_of(const ParsedOptions& parsed) {
  return peer_command(parsed, training_peer, {"eager", "graph", "compiled", "compiled-graph"});
}

Options& with_ragged_peer_option(Options& options) {
  return options.value("peer", "HOW",
                       fmt::format("also measure PyTorch: eager, with {} of the source\n"
                                   "                    tree; or another COMMAND",
                                   ragged_peer));
}

std::string ragged_peer_of(const ParsedOptions& parsed) {
  const std::string wanted = parsed.value_or("peer", "none");
  if (wanted == "none") return "";
  return wanted == "eager" ? required_source_tree_peer(ragged_peer) : wanted;
}

Options& with_op_peer_option(Options& options) {
  return options.value(
      "peer", "HOW",
      fmt::format("also measure PyTorch's operations, with {} of the source\n"
                  "                    tree: eager; compiled, which is slow to start; or another COMMAND",
                  op_peer));
}

std::string op_peer_of(const ParsedOptions& parsed) {
  return peer_command(parsed, op_peer, {"eager", "compiled"});
}

Options& with_generation_peer_option(Options& options) {
  return options.value("peer", "HOW",
                       fmt::format("also measure transformers, with {} of the source\n"
                                   "                    tree: eager; compiled, which takes minutes; or another COMMAND",
                                   generation_peer));
}

std::string generation_peer_of(const ParsedOptions& parsed) {
  return peer_command(parsed, generation_peer, {"eager", "compiled"});
}

} // namespace fvlm::cli
