// A gzip file unpacked once into the cache, as a stream. Random access into a .tar.gz itself would need a window of
// 32 KiB for every point of entry and unpack up to the next one for each read, epoch after epoch; a tar in the cache is
// read like any other.
#pragma once
#include "data/shards/retried_file.h"

#include <cstdint>
#include <filesystem>

namespace fvlm {

bool is_gzip(const RetriedFile& file);

// Writes what `packed` holds to `out`, atomically. A stream that is damaged or cut short gives what comes before that,
// and a warning in the log. Throws Error(data) when it unpacks to more than `most` bytes.
void gunzip(const RetriedFile& packed, const std::filesystem::path& out, uint64_t most);

} // namespace fvlm
