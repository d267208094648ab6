// Which program a benchmark measures the engine against: --peer, else a tool of the source tree.
#pragma once
#include "cli/options.h"

#include <string>

namespace fvlm::cli {

// Adds --peer. `tool`: within the source tree.
Options& with_peer_option(Options& options, const std::string& tool);

// A shell command; empty: none, with a warning where nobody asked for that. A tool of the source tree that this program
// was built in runs in the Python whose LibTorch the engine uses.
std::string peer_of(const ParsedOptions& parsed, const std::string& tool);

// Where the peer trains: --peer names how PyTorch does it, or a command; by default there is none.
Options& with_training_peer_option(Options& options);
std::string training_peer_of(const ParsedOptions& parsed);
// The same on samples of all lengths, which PyTorch learns eagerly alone.
Options& with_ragged_peer_option(Options& options);
std::string ragged_peer_of(const ParsedOptions& parsed);

// Operations by themselves.
Options& with_op_peer_option(Options& options);
std::string op_peer_of(const ParsedOptions& parsed);

} // namespace fvlm::cli
