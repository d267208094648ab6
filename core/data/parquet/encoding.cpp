#include "data/parquet/encoding.h"

#include "base/error.h"

#include <fmt/format.h>

#include <bit>
#include <cstring>
#include <memory>
#include <zlib.h>
#include <zstd.h>

namespace fvlm::parquet {
namespace {

using Bytes = std::span<const std::byte>;

uint64_t take_varint(Bytes& bytes) {
  uint64_t value = 0;
  for (unsigned shift = 0; shift < 64; shift += 7) {
    if (bytes.empty()) damaged_page("it ends too early");
    const auto next = std::to_integer<uint64_t>(bytes[0]);
    bytes = bytes.subspan(1);
    value |= (next & 0x7f) << shift;
    if (next < 0x80) return value;
  }
  damaged_page("a number is too long");
}

uint64_t take_little_endian(Bytes& bytes, size_t count) {
  if (count > bytes.size()) damaged_page("it ends too early");
  uint64_t value = 0;
  for (size_t i = 0; i < count; ++i) value |= std::to_integer<uint64_t>(bytes[i]) << 8 * i;
  bytes = bytes.subspan(count);
  return value;
}

// Google's format: literals, and copies of what was decompressed before. Returns how much of `out` is filled; where it
// is a beginning, what the input lacks is left out.
size_t unpack_snappy(Bytes packed, std::span<std::byte> out, bool is_beginning) {
  const uint64_t all = take_varint(packed);
  if (all != out.size() && !is_beginning) damaged_page("its decompressed size is another one");
  size_t done = 0;
  while (!packed.empty() && done < out.size()) {
    const auto tag = std::to_integer<size_t>(packed[0]);
    if (is_beginning && packed.size() < 5) break;
    packed = packed.subspan(1);
    size_t length = (tag >> 2) + 1, offset = 0;
    switch (tag & 3) {
    case 0:
      if (length > 60) length = take_little_endian(packed, length - 60) + 1;
      if (is_beginning) length = std::min({length, packed.size(), out.size() - done});
      if (length > packed.size() || length > out.size() - done) damaged_page("a literal is too long");
      std::memcpy(out.data() + done, packed.data(), length);
      packed = packed.subspan(length);
      done += length;
      continue;
    case 1:
      length = (tag >> 2 & 7) + 4;
      offset = (tag >> 5 << 8) + take_little_endian(packed, 1);
      break;
    case 2:
      offset = take_little_endian(packed, 2);
      break;
    default:
      offset = take_little_endian(packed, 4);
    }
    if (is_beginning) length = std::min(length, out.size() - done);
    if (offset < 1 || offset > done || length > out.size() - done) damaged_page("a copy of what is not there");
    for (size_t end = done + length; done < end; ++done) out[done] = out[done - offset]; // they may overlap
  }
  if (!is_beginning && (done != out.size() || !packed.empty())) damaged_page("it ends too early");
  return done;
}

size_t unpack_gzip(Bytes packed, std::span<std::byte> out, bool is_beginning) {
  z_stream stream{};
  if (inflateInit2(&stream, 15 + 32) != Z_OK) throw Error(ErrorKind::internal, "zlib could not be started");
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<std::byte*>(packed.data()));
  stream.avail_in = static_cast<uInt>(packed.size());
  stream.next_out = reinterpret_cast<Bytef*>(out.data());
  stream.avail_out = static_cast<uInt>(out.size());
  const int status = inflate(&stream, is_beginning ? Z_SYNC_FLUSH : Z_FINISH);
  inflateEnd(&stream);
  if (!is_beginning && (status != Z_STREAM_END || stream.avail_out > 0)) damaged_page("its gzip data are damaged");
  return out.size() - stream.avail_out;
}

size_t unpack_zstd(Bytes packed, std::span<std::byte> out, bool is_beginning) {
  const std::unique_ptr<ZSTD_DCtx, decltype(&ZSTD_freeDCtx)> stream(ZSTD_createDCtx(), ZSTD_freeDCtx);
  ZSTD_inBuffer input{packed.data(), packed.size(), 0};
  ZSTD_outBuffer output{out.data(), out.size(), 0};
  size_t status = 1;
  while (input.pos < input.size && output.pos < output.size) {
    status = ZSTD_decompressStream(stream.get(), &output, &input);
    if (ZSTD_isError(status)) damaged_page(ZSTD_getErrorName(status));
  }
  if (!is_beginning && (status != 0 || output.pos != out.size())) damaged_page("its zstd data are cut short");
  return output.pos;
}

std::vector<std::byte> unpack(Codec codec, Bytes packed, uint64_t size, bool is_beginning) {
  if (codec == Codec::none)
    return {packed.begin(), packed.begin() + static_cast<ptrdiff_t>(std::min<uint64_t>(size, packed.size()))};
  std::vector<std::byte> out(size);
  switch (codec) {
  case Codec::snappy:
    out.resize(unpack_snappy(packed, out, is_beginning));
    return out;
  case Codec::gzip:
    out.resize(unpack_gzip(packed, out, is_beginning));
    return out;
  case Codec::zstd:
    out.resize(unpack_zstd(packed, out, is_beginning));
    return out;
  default:
    throw Error(ErrorKind::internal, "a compression that read_metadata() refuses");
  }
}

int64_t as_integer(uint64_t bits, size_t size, bool is_unsigned) {
  if (size == 8 || is_unsigned) return static_cast<int64_t>(bits);
  return static_cast<int32_t>(static_cast<uint32_t>(bits));
}

} // namespace

void damaged_page(const std::string& what) {
  throw Error(ErrorKind::data, "a damaged page: " + what);
}

std::vector<std::byte> decompress(Codec codec, Bytes packed, uint64_t size) {
  constexpr uint64_t max_page_bytes = uint64_t{1} << 30, max_ratio = 1100; // deflate's; snappy's is far below
  if (size > max_page_bytes) damaged_page(fmt::format("it says that it has {} bytes", size));
  if (codec == Codec::none ? size != packed.size() : codec != Codec::zstd && size / max_ratio > packed.size())
    damaged_page("its decompressed size is another one");
  if (size == 0) return {}; // of nulls alone, which writers may compress or not
  // The frame says its size where a whole buffer was compressed at once, as Arrow does.
  if (codec == Codec::zstd && size / max_ratio > packed.size() &&
      ZSTD_getFrameContentSize(packed.data(), packed.size()) != size)
    damaged_page("its decompressed size is another one");
  return unpack(codec, packed, size, false);
}

std::vector<std::byte> decompress_beginning(Codec codec, Bytes packed, uint64_t size) {
  return unpack(codec, packed, size, true);
}

std::vector<uint32_t> read_runs(Bytes bytes, int bits, uint64_t count) {
  if (bits < 0 || bits > 32) damaged_page("a number has too many bits");
  std::vector<uint32_t> values;
  if (bits == 0) {
    values.resize(count);
    return values;
  }
  values.reserve(std::min<uint64_t>(count, bytes.size() * 64 + 64));
  const uint64_t mask = (uint64_t{1} << bits) - 1;
  while (values.size() < count) {
    const uint64_t head = take_varint(bytes);
    const uint64_t room = count - values.size();
    if ((head & 1) == 0) {
      if (head == 0) damaged_page("an empty run");
      const auto value = static_cast<uint32_t>(take_little_endian(bytes, static_cast<size_t>(bits + 7) / 8) & mask);
      values.insert(values.end(), std::min(head >> 1, room), value);
      continue;
    }
    const uint64_t groups = head >> 1;
    if (groups == 0 || groups > bytes.size()) damaged_page("a run is too long");
    Bytes group = bytes.first(std::min<uint64_t>(groups * static_cast<uint64_t>(bits), bytes.size()));
    bytes = bytes.subspan(group.size());
    uint64_t held = 0;
    int held_bits = 0;
    for (uint64_t i = 0; i < std::min(groups * 8, room); ++i) {
      for (; held_bits < bits; held_bits += 8) held |= take_little_endian(group, 1) << held_bits;
      values.push_back(static_cast<uint32_t>(held & mask));
      held >>= bits;
      held_bits -= bits;
    }
  }
  return values;
}

std::vector<Value> read_plain(const Column& column, Bytes bytes, uint64_t count) {
  std::vector<Value> values;
  if (column.type == Physical::boolean) {
    if (count > bytes.size() * 8) damaged_page("it has too few values");
    values.resize(count);
    for (uint64_t i = 0; i < count; ++i) values[i].integer = std::to_integer<int>(bytes[i / 8]) >> i % 8 & 1;
    return values;
  }
  if (count > bytes.size()) damaged_page("it has too few values"); // each has a byte at least
  values.resize(count);
  for (Value& value : values) switch (column.type) {
    case Physical::int32:
    case Physical::int64: {
      const size_t size = column.type == Physical::int32 ? 4 : 8;
      value.integer = as_integer(take_little_endian(bytes, size), size, column.is_unsigned);
      break;
    }
    case Physical::float32:
      value.real = std::bit_cast<float>(static_cast<uint32_t>(take_little_endian(bytes, 4)));
      break;
    case Physical::float64:
      value.real = std::bit_cast<double>(take_little_endian(bytes, 8));
      break;
    default: {
      const uint64_t size = column.type == Physical::bytes         ? take_little_endian(bytes, 4)
                            : column.type == Physical::fixed_bytes ? static_cast<uint64_t>(column.width)
                                                                   : 12;
      if (size > bytes.size()) damaged_page("a text is longer than its page");
      value.bytes = {reinterpret_cast<const char*>(bytes.data()), size};
      bytes = bytes.subspan(size);
    }
    }
  return values;
}

} // namespace fvlm::parquet
