// Reading and writing of whole files, and well-known folders.
#pragma once
#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>

namespace fvlm {

// Reads a regular file. Throws Error(data) where it is missing, unreadable or larger than max_bytes.
std::string read_file(const std::filesystem::path& path, uint64_t max_bytes = uint64_t{1} << 30);

// Replaces the file at `path` atomically: see AtomicFile.
void write_file_atomic(const std::filesystem::path& path, std::string_view content);

// Whether `path` is `folder` or below it, with symlinks resolved. Both have to exist.
bool is_below(const std::filesystem::path& path, const std::filesystem::path& folder);

// The folder of the running program, symlinks resolved.
std::filesystem::path program_folder();

// FVLM_CACHE, else XDG_CACHE_HOME/fvlm-engine, else ~/.cache/fvlm-engine, where ~ is HOME or the user's home folder in
// the password database. Does not create it. Never falls back to a shared folder such as /tmp or to the working folder:
// throws Error(output) where there is none of these.
std::filesystem::path cache_folder();

} // namespace fvlm
