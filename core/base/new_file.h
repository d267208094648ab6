// How the engine makes files and folders. Whoever owns a folder that we write to (a data folder of another user, /tmp)
// can put symlinks there: nothing here follows one at the last step of a path, and a name that exists only for a while
// cannot be guessed and is never opened when something has it already. All of it throws Error(output).
#pragma once
#include "base/descriptor.h"

#include <filesystem>

namespace fvlm {

struct PartialFile {
  std::filesystem::path path; // "weights.bin.partial-4f0c2a91b3d8e675"
  Descriptor fd;
};

// A new, empty file beside `path`, to be renamed to it: O_CREAT | O_EXCL | O_NOFOLLOW under a random name.
PartialFile create_partial_file(const std::filesystem::path& path);

// A new, empty folder beside `path`, to be renamed to it. `fd` holds a lock that says it is in use; folders of dead
// processes, which have none, are removed first.
PartialFile create_partial_folder(const std::filesystem::path& path);

// A file that stays and grows (a log, a lock, metrics), for reading and writing; made empty where there is none.
// Refuses anything but a regular file.
Descriptor open_kept_file(const std::filesystem::path& path);

// The folder and those above it.
void make_folders(const std::filesystem::path& folder);

} // namespace fvlm
