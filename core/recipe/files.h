// Which files and folders of a Plan are not there. A Plan is made without looking at any; `check --files` asks.
#pragma once
#include "recipe/resolve.h"

#include <string>
#include <vector>

namespace fvlm::recipe {

struct MissingFile {
  std::string path;      // of the value that names it
  std::string file;      // as it is named there, a pattern perhaps
  std::string what;      // "no file matches this pattern"
  std::string source;    // where the value was written
  bool unusable = false; // it is there, and is not what it is taken for
};

struct FileReport {
  std::vector<MissingFile> missing;
  size_t shards = 0; // that are there, those that several sources name counted once
  uint64_t shard_bytes = 0;
};

// Looks at model folders, checkpoints, tokenizers and every shard that a pattern names.
FileReport find_missing_files(const Resolved& resolved);

} // namespace fvlm::recipe
