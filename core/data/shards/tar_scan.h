// Lists the members of a tar file by reading its headers only. Damage is reported, and the scan resumes at the next
// valid header behind it. The archive is not trusted: links are not followed, and names are not used as paths.
#pragma once
#include "data/shards/retrying_file.h"

#include <cstdint>
#include <functional>
#include <string>

namespace fvlm {

struct TarEntry {
  uint64_t header = 0;           // offset of the member, including preceding records
  std::string name;              // for a damaged member as far as it is readable, or empty
  uint64_t offset = 0, size = 0; // of its data
  std::string wrong;             // why it must not be used; empty for a valid regular file
};

// Calls back for every regular file and every damaged part, in order. Folders are skipped.
void scan_tar(const RetryingFile& file, const std::function<void(TarEntry&&)>& callback);

} // namespace fvlm
