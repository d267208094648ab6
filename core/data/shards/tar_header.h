// One 512-byte header of a tar file, and the records of a pax header.
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
  std::string name;       // as it stands there, with the prefix of ustar
  bool full_name = false; // the name fills its field, so a longer one may stand in a record before it
  char type = '0';
  uint64_t size = 0;
  bool more_map = false; // of a sparse file: blocks with its map follow
  std::string wrong;     // what is wrong with a header whose checksum is right; empty: nothing
};

// None where the checksum is wrong.
std::optional<TarHeader> read_tar_header(TarBlock block);

bool is_zero(TarBlock block);

// A header that stands out among data: right checksum and the magic of ustar or GNU.
bool is_surely_header(TarBlock block);

// What the name field of a damaged header holds, if it reads like a name; else nothing.
std::string readable_name(TarBlock block);

struct PaxRecords {
  std::optional<std::string> path;
  std::optional<uint64_t> size;
  bool sparse = false;
};

// None where they are malformed.
std::optional<PaxRecords> read_pax(std::string_view text);

// The name without "./" before it. `wrong` says why no sample may go by it; empty: it is good.
std::string_view plain_name(std::string_view name, std::string& wrong);

} // namespace fvlm
