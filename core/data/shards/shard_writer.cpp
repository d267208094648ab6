#include "data/shards/shard_writer.h"

#include "base/error.h"
#include "base/text.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <numeric>

namespace fvlm {
namespace {

constexpr size_t block = 512;
constexpr size_t most_in_name = 100, most_in_prefix = 155; // bytes of the fields of a ustar header
constexpr uint64_t most_in_size = (uint64_t{1} << 33) - 1; // eleven octal digits

void check_name(std::string_view name, const std::string& where) {
  auto folders = split(name, '/');
  bool leads_out = std::ranges::find(folders, "..") != folders.end();
  if (name.empty() || name.front() == '/' || name.back() == '/' || leads_out ||
      name.find('\0') != std::string_view::npos)
    throw Error(ErrorKind::data, "'{}' is no name for a member of a shard", name)
        .at(where)
        .advise("a relative path without '..' names a file, such as clips/000012.json");
}

// Where `name` is cut in two for the fields prefix and name; npos: it fits neither whole nor cut.
size_t cut_of(std::string_view name) {
  if (name.size() <= most_in_name) return 0;
  size_t slash = name.find('/', name.size() - most_in_name - 1);
  return slash > most_in_prefix ? std::string_view::npos : slash; // npos is larger, too
}

// "27 path=clips/...\n", whose first number counts the record with itself.
std::string pax_record(std::string_view key, std::string_view value) {
  std::string rest = fmt::format(" {}={}\n", key, value);
  size_t length = rest.size() + 1;
  while (fmt::format_int(length).size() + rest.size() != length) length = rest.size() + fmt::format_int(length).size();
  return fmt::format("{}{}", length, rest);
}

} // namespace

void ShardWriter::header(std::string_view name, uint64_t size, char type) {
  std::array<char, block> bytes{};
  auto put = [&](size_t at, std::string_view text) { std::memcpy(bytes.data() + at, text.data(), text.size()); };
  size_t cut = cut_of(name);
  if (cut == std::string_view::npos) {
    put(0, name.substr(name.size() - most_in_name)); // the pax record before it holds the whole
  } else {
    put(0, cut ? name.substr(cut + 1) : name);
    put(345, name.substr(0, cut));
  }
  put(100, "0000644");
  put(108, "0000000"); // owner and group
  put(116, "0000000");
  put(124, fmt::format("{:011o}", std::min(size, most_in_size)));
  put(136, "00000000000"); // time
  put(148, "        ");    // the checksum counts itself as spaces
  bytes[156] = type;
  put(257, std::string_view("ustar\00000", 8));
  unsigned sum = std::accumulate(bytes.begin(), bytes.end(), 0U,
                                 [](unsigned total, char c) { return total + static_cast<unsigned char>(c); });
  put(148, fmt::format("{:06o}", sum));
  bytes[154] = '\0';
  body(std::as_bytes(std::span(bytes)));
}

void ShardWriter::body(std::span<const std::byte> bytes) {
  static constexpr std::array<std::byte, block> zeros{};
  file_.write(bytes);
  size_t rest = bytes.size() % block;
  size_t padding = rest ? block - rest : 0;
  file_.write(std::span(zeros).first(padding));
  size_ += bytes.size() + padding;
}

void ShardWriter::add(std::string_view name, std::span<const std::byte> bytes) {
  check_name(name, where_);
  std::string extended;
  if (cut_of(name) == std::string_view::npos) extended += pax_record("path", name);
  if (bytes.size() > most_in_size) extended += pax_record("size", fmt::format("{}", bytes.size()));
  if (!extended.empty()) {
    header("pax", extended.size(), 'x');
    body(std::as_bytes(std::span(extended)));
  }
  header(name, bytes.size(), '0');
  body(bytes);
}

void ShardWriter::commit() {
  static constexpr std::array<std::byte, 2 * block> end{};
  body(end);
  file_.commit();
}

} // namespace fvlm
