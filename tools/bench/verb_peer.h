// The program that a benchmark compares the engine with: --peer, or else a script of the source tree.
#pragma once
#include "cli/options.h"

#include <string>

namespace fvlm::cli {

// Adds --peer. `tool` is the path of the default peer in the source tree.
Options& with_peer_option(Options& options, const std::string& tool);

// Returns a shell command, or an empty string for no peer, with a warning unless --peer none was given. A script of the
// source tree that this program was built in runs in the Python whose LibTorch the engine uses.
std::string peer_of(const ParsedOptions& parsed, const std::string& tool);

// For benchmarks of training: --peer selects how PyTorch runs, or is a command. By default there is no peer.
Options& with_training_peer_option(Options& options);
std::string training_peer_of(const ParsedOptions& parsed);
// For training on samples of all lengths, where the PyTorch script only runs eagerly.
Options& with_ragged_peer_option(Options& options);
std::string ragged_peer_of(const ParsedOptions& parsed);

// For single operations.
Options& with_op_peer_option(Options& options);
std::string op_peer_of(const ParsedOptions& parsed);

// For generation.
Options& with_generation_peer_option(Options& options);
std::string generation_peer_of(const ParsedOptions& parsed);

} // namespace fvlm::cli
