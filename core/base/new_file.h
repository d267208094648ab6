// Safe creation of files and folders, also in a folder that another user may write to (a shared data folder, /tmp) and
// could put symlinks into. The last component of a path is never followed if it is a symlink, temporary names are
// random, and an existing file is never opened under one. All functions throw Error(output).
#pragma once
#include "base/descriptor.h"

#include <filesystem>

namespace fvlm {

struct PartialFile {
  std::filesystem::path path; // "weights.bin.partial-4f0c2a91b3d8e675"
  Descriptor fd;
};

// A new, empty file in the folder of `path`, under a random name, to be renamed to `path`.
PartialFile create_partial_file(const std::filesystem::path& path);

// The same for a folder. `fd` holds a lock on it while it is in use. First removes the folders of killed processes for
// the same `path`, which are not locked.
PartialFile create_partial_folder(const std::filesystem::path& path);

// Opens a permanent file (a log, a lock, metrics) for reading and writing, and creates it where there is none. Refuses
// anything but a regular file.
Descriptor open_kept_file(const std::filesystem::path& path);

// Creates the folder and its parents.
void make_folders(const std::filesystem::path& folder);

} // namespace fvlm
