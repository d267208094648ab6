// Decompresses a .tar.gz into the cache once. Random access within the .tar.gz itself would need a window of 32 KiB for
// each entry point and repeated decompression in every epoch; the tar in the cache is read like any other.
#pragma once
#include "data/shards/retrying_file.h"

#include <cstdint>
#include <filesystem>

namespace fvlm {

bool is_gzip(const RetryingFile& file);

// Decompresses `packed` to `out` atomically. Of a damaged or truncated stream, the part before the damage is kept and a
// warning is logged. Throws Error(data) when the result is larger than `most` bytes.
void gunzip(const RetryingFile& packed, const std::filesystem::path& out, uint64_t most);

} // namespace fvlm
