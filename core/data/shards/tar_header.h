// Parses the 512-byte headers of a tar file and the records of a pax header.
#pragma once
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace fvlm {

inline constexpr uint64_t tar_block = 512;
using TarBlock = std::span<const std::byte, tar_block>;

struct TarHeader {
  std::string name;       // with the ustar prefix
  bool full_name = false; // the name fills its field, so the full one may be in a preceding record
  char type = '0';
  uint64_t size = 0;
  bool more_map = false; // blocks with the map of a sparse file follow
  std::string wrong;     // why a header with a valid checksum is invalid; empty when it is valid
};

// nullopt when the checksum is wrong.
std::optional<TarHeader> read_tar_header(TarBlock block);

bool is_zero(TarBlock block);

// Whether the block is a header beyond doubt: valid checksum and the magic of ustar or GNU.
bool is_surely_header(TarBlock block);

// The name field of a damaged header if it is plausible, otherwise empty.
std::string readable_name(TarBlock block);

struct PaxRecords {
  std::optional<std::string> path;
  std::optional<uint64_t> size;
  bool sparse = false;
};

// nullopt when they are malformed.
std::optional<PaxRecords> read_pax(std::string_view text);

// The name without a leading "./". `wrong` is set to the reason when the name must not be used.
std::string_view plain_name(std::string_view name, std::string& wrong);

} // namespace fvlm
