// Loads a library in a child process first, so that one that crashes, exits or hangs is an Error here.
#pragma once
#include "plugin/loader.h"

#include <string>

namespace fvlm {

// What the child and its parent say to each other on descriptor 3, a line each: "step TEXT" before each step into the
// plugin's code, then "done", or "refused JSON".
constexpr int probe_report_descriptor = 3;

// Throws Error(plugin) when the child refused the library, died of it or did not come back. [setup]
void probe_library(const Manifest& manifest, const OpenedFile& library, const std::string& sha256,
                   const ProbeOptions& options);

// Why the engine would not take this library, wherever it lies and whoever may write it, as a child process finds it
// now; empty: it would. A library without a manifest is held to what it says of itself, on `device`. [setup]
std::string loader_refusal(const std::filesystem::path& library, const std::optional<Manifest>& manifest,
                           const std::string& device, const ProbeOptions& options);

// The library's hash, from the probe's memory where the file is still the one that was hashed. Not for the lock file:
// that wants the file itself read.
std::string remembered_sha256(const OpenedFile& library, const ProbeOptions& options);

} // namespace fvlm
