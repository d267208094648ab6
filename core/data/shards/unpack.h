// Decompresses a .gz or .zst into the cache once. Random access within the compressed file itself would need a window
// for each entry point and repeated decompression in every epoch; what lies in the cache is read like any other file.
#pragma once
#include "data/shards/retrying_file.h"

#include <cstdint>
#include <filesystem>
#include <string_view>

namespace fvlm {

bool is_packed(const RetryingFile& file); // by its first bytes

// Decompresses `packed` to `out` atomically. Of a damaged or truncated stream, the part before the damage is kept,
// `mark` is written behind it, and a warning is logged. Throws Error(data) when the result is larger than `most` bytes.
void unpack(const RetryingFile& packed, const std::filesystem::path& out, uint64_t most, std::string_view mark = {});

} // namespace fvlm
