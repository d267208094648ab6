// Loads a library in a child process first, so that one that crashes, exits or hangs becomes an Error.
#pragma once
#include "plugin/loader.h"

#include <string>

namespace fvlm {

// The file descriptor on which the child reports, in lines: "step TEXT" before each call into the plugin's code, then
// "done" or "refused JSON".
constexpr int probe_report_descriptor = 3;

// Throws Error(plugin) where the child refused the library, crashed or timed out. [setup]
void probe_library(const Manifest& manifest, const OpenedFile& library, const std::string& sha256,
                   const ProbeOptions& options);

// Why the engine would refuse this library, apart from questions of trust, by a trial load now; empty where it would
// not. `device`: of the sample queries for a library without a manifest. [setup]
std::string trial_load_refusal(const std::filesystem::path& library, const std::optional<Manifest>& manifest,
                               const std::string& device, const ProbeOptions& options);

// The library's hash: cached, as long as the file's identity (inode, size, times) is that of the file that was hashed.
// Not for lock files, which require the content to be read.
std::string cached_sha256(const OpenedFile& library, const ProbeOptions& options);

} // namespace fvlm
