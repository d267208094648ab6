// Encodes the records of a TensorBoard events file, without a protocol-buffer library.
//
// A record is its length (8 bytes), the masked CRC-32C of that, an Event in protocol-buffer wire format, and the masked
// CRC-32C of that; all little-endian. Fields: Event { wall_time = 1, step = 2, file_version = 3, summary = 5 },
// Summary { value = 1 }, Value { tag = 1, simple_value = 2 }.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace fvlm::report {

uint32_t crc32c(std::string_view bytes);

// The first record of every events file.
std::string version_record(double wall_time);

// simple_value is a float32, so values beyond its range become infinite.
std::string scalars_record(double wall_time, int64_t step, const std::vector<std::pair<std::string, double>>& tagged);

} // namespace fvlm::report
