// A tar file's members, found by their headers alone. What is damaged is told; where headers can be found again behind
// it, the members there are found, too. Nothing is followed, unpacked or believed: names are only names.
#pragma once
#include "data/shards/retried_file.h"

#include <cstdint>
#include <functional>
#include <string>

namespace fvlm {

struct TarItem {
  uint64_t header = 0;           // where the member begins, with the records that belong to it
  std::string name;              // of something wrong: as far as it can be read, or empty
  uint64_t offset = 0, size = 0; // of its data
  std::string wrong;             // why it must not be used; empty: a good regular file
};

// Gives every regular file and everything that is wrong, in the file's order. Folders are passed over.
void scan_tar(const RetriedFile& file, const std::function<void(TarItem&&)>& give);

} // namespace fvlm
