#include "cli/bench_peer.h"

#include "base/error.h"
#include "base/file.h"
#include "base/log.h"
#include "cli/torch_library.h"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>

namespace fvlm::cli {
namespace {

namespace fs = std::filesystem;

constexpr const char* training_peer = "tools/oracle/train-step";
constexpr const char* ragged_peer = "tools/oracle/train-ragged";
constexpr const char* op_peer = "tools/oracle/time-op";

std::string peer_of_the_checkout(const std::string& tool) {
  const fs::path path = (program_folder() / "../../.." / tool).lexically_normal();
  std::error_code ignored;
  if (!fs::exists(path, ignored)) return "";
  const fs::path python = (find_torch().folder / "../../../../bin/python").lexically_normal();
  return fmt::format("'{}' '{}'", fs::exists(python, ignored) ? python.string() : "python3", path.string());
}

// One that somebody has asked for.
std::string wanted_of_the_checkout(const std::string& tool) {
  std::string peer = peer_of_the_checkout(tool);
  if (peer.empty())
    throw Error(ErrorKind::usage, fmt::format("{} is not beside this program's build", tool))
        .advise("--peer COMMAND names a program");
  return peer;
}

// What --peer names: a way in which a tool goes, or a command.
std::string peer_that_goes(const ParsedOptions& parsed, const char* tool,
                           std::initializer_list<std::string_view> ways) {
  const std::string wanted = parsed.value_or("peer", "none");
  if (wanted == "none") return "";
  if (std::find(ways.begin(), ways.end(), wanted) == ways.end()) return wanted;
  return fmt::format("{} --how {}", wanted_of_the_checkout(tool), wanted);
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

Options& with_training_peer_option(Options& options) {
  return options.value("peer", "HOW",
                       fmt::format("measure PyTorch's step, too, by {} of the source\n"
                                   "                    tree: eager; graph, captured as a whole; compiled, which\n"
                                   "                    takes minutes; compiled-graph; or another COMMAND",
                                   training_peer));
}

std::string training_peer_of(const ParsedOptions& parsed) {
  return peer_that_goes(parsed, training_peer, {"eager", "graph", "compiled", "compiled-graph"});
}

Options& with_ragged_peer_option(Options& options) {
  return options.value("peer", "HOW",
                       fmt::format("measure PyTorch, too: eager, by {} of the source tree;\n"
                                   "                    or another COMMAND",
                                   ragged_peer));
}

std::string ragged_peer_of(const ParsedOptions& parsed) {
  const std::string wanted = parsed.value_or("peer", "none");
  if (wanted == "none") return "";
  return wanted == "eager" ? wanted_of_the_checkout(ragged_peer) : wanted;
}

Options& with_op_peer_option(Options& options) {
  return options.value(
      "peer", "HOW",
      fmt::format("measure PyTorch's operations, too, by {} of the source\n"
                  "                    tree: eager; compiled, which takes its time; or another COMMAND",
                  op_peer));
}

std::string op_peer_of(const ParsedOptions& parsed) {
  return peer_that_goes(parsed, op_peer, {"eager", "compiled"});
}

} // namespace fvlm::cli
