// How Parquet stores bytes: compression, runs of small numbers, and the values of a page.
#pragma once
#include "data/parquet/metadata.h"

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace fvlm::parquet {

[[noreturn]] void damaged_page(const std::string& what); // throws Error(data)

// Throws Error(data) unless exactly `size` bytes come out.
std::vector<std::byte> decompress(Codec codec, std::span<const std::byte> packed, uint64_t size);
// The first `size` bytes, of which `packed` may be the beginning; fewer where it has no more.
std::vector<std::byte> decompress_beginning(Codec codec, std::span<const std::byte> packed, uint64_t size);

// `count` numbers of `bits` each, in runs of one number and groups of eight. Throws Error(data) where there are fewer.
std::vector<uint32_t> read_runs(std::span<const std::byte> bytes, int bits, uint64_t count);

// A value without its type, which the column has.
union Value {
  int64_t integer;
  double real;
  std::string_view bytes;
  Value() : integer(0) {}
};

// `count` values one behind the other. Strings are views of `bytes`.
std::vector<Value> read_plain(const Column& column, std::span<const std::byte> bytes, uint64_t count);

} // namespace fvlm::parquet
