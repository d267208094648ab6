// The program that a benchmark compares the engine with: --peer, or else a script of the source tree.
#pragma once
#include "cli/options.h"

#include <string>
#include <string_view>
#include <vector>

namespace fvlm::cli {

// Adds --peer. `tool` is the path of the default peer in the source tree.
Options& with_peer_option(Options& options, const std::string& tool);

// Returns a shell command, or an empty string for no peer, with a warning unless --peer none was given. A script of the
// source tree that this program was built in runs in the Python whose LibTorch the engine uses.
std::string peer_of(const ParsedOptions& parsed, const std::string& tool);

// A script of the source tree that measures PyTorch or transformers on the same work. By default there is no peer:
// --peer is one of the script's modes, or another command.
struct PeerScript {
  const char* tool;                    // its path in the source tree
  std::vector<std::string_view> modes; // its --how; a script with a single mode has no such option
  const char* help;                    // of --peer, with {} where the path stands
};
extern const PeerScript training_peer, ragged_peer, op_peer, generation_peer;

Options& with_peer_option(Options& options, const PeerScript& script);
std::string peer_of(const ParsedOptions& parsed, const PeerScript& script);

} // namespace fvlm::cli
