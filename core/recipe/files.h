// Finds missing files and folders of a Plan. Resolving a Plan does not access any; `check --files` does.
#pragma once
#include "recipe/resolve.h"

#include <string>
#include <vector>

namespace fvlm::recipe {

struct MissingFile {
  std::string path;      // path of the value that names the file
  std::string file;      // as written, possibly a pattern
  std::string what;      // "no file matches this pattern"
  std::string source;    // where the value was written
  bool unusable = false; // it exists, but is not of the expected kind
};

struct FileReport {
  std::vector<MissingFile> missing;
  size_t shards = 0; // existing ones, each counted once
  uint64_t shard_bytes = 0;
};

// Checks model folders, checkpoints, tokenizers and every shard that a pattern names.
FileReport find_missing_files(const Resolved& resolved);
// Of one stage alone: the shards of its data and evaluation sets, what it starts from, and teachers.
FileReport find_missing_files(const Resolved& resolved, const plan::Stage& stage);

} // namespace fvlm::recipe
