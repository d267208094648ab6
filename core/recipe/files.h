// Which files and folders of a Plan are not there. A Plan is made without looking at any; `check --files` asks.
#pragma once
#include "recipe/resolve.h"

#include <string>
#include <vector>

namespace fvlm::recipe {

struct MissingFile {
  std::string path;   // of the value that names it
  std::string file;   // what was looked for
  std::string source; // where the value was written
};

// Looks at model folders, checkpoints, tokenizers and shards; of a shard pattern, at the folder its fixed part names.
std::vector<MissingFile> missing_files(const Resolved& resolved);

} // namespace fvlm::recipe
