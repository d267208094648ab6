// Files read whole with a bound, and written atomically: beside, fsynced, renamed.
#pragma once
#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>

namespace fvlm {

// Reads a regular file. Throws Error(kind data) when it is missing, unreadable or larger than max_bytes.
std::string read_file(const std::filesystem::path& path, uint64_t max_bytes = uint64_t{1} << 30);

// The file at `path` holds either its old content or all of `content`, whatever happens in between.
void write_file_atomic(const std::filesystem::path& path, std::string_view content);

// True when `path`, with symlinks resolved, lies in `folder` or below it. Both must exist.
bool is_below(const std::filesystem::path& path, const std::filesystem::path& folder);

// The folder of the running program, symlinks resolved.
std::filesystem::path program_folder();

// FVLM_CACHE, else XDG_CACHE_HOME/fvlm-engine, else ~/.cache/fvlm-engine, where ~ is HOME or else what the system has
// for the user. Not created. Never a place that others share, such as /tmp, or one below the working folder: throws
// Error(output) where none of these is known.
std::filesystem::path cache_folder();

} // namespace fvlm
