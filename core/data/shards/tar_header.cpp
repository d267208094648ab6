// POSIX.1-1988 ustar, GNU's and pax's extensions of it, and what came before (v7, without magic).
#include "data/shards/tar_header.h"

#include "data/unicode.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>

namespace fvlm {
namespace {

struct Field {
  size_t at, size;
};
constexpr Field name_field{0, 100}, size_field{124, 12}, checksum_field{148, 8}, magic_field{257, 8},
    prefix_field{345, 155};
constexpr size_t type_at = 156, sparse_more_at = 482;
constexpr std::string_view posix_magic("ustar\00000", 8), gnu_magic("ustar  \0", 8);

std::string_view bytes_of(TarBlock block, Field field) {
  return {reinterpret_cast<const char*>(block.data()) + field.at, field.size};
}

std::string_view text_of(TarBlock block, Field field) {
  auto text = bytes_of(block, field);
  return text.substr(0, text.find('\0'));
}

// Octal digits between spaces and zeros, or base 256 where the first bit is set. None: neither, negative or too large.
std::optional<uint64_t> number_of(std::string_view text) {
  auto first = static_cast<unsigned char>(text[0]);
  if (first & 0x80) {
    uint64_t value = first & 0x7f;
    if (first & 0x40) return std::nullopt; // negative
    for (char c : text.substr(1)) {
      if (value >> 55) return std::nullopt; // 2^63 and more
      value = value << 8 | static_cast<unsigned char>(c);
    }
    return value;
  }
  auto begin = text.find_first_not_of(' ');
  if (begin == std::string_view::npos || text[begin] == '\0') return 0; // left empty
  auto end = std::min(text.find_first_of(std::string_view(" \0", 2), begin), text.size());
  uint64_t value = 0; // of at most twelve digits
  auto [stopped, error] = std::from_chars(text.data() + begin, text.data() + end, value, 8);
  if (error != std::errc{} || stopped != text.data() + end) return std::nullopt;
  return value;
}

bool checksum_is_right(TarBlock block) {
  auto told = number_of(bytes_of(block, checksum_field));
  if (!told || is_zero(block)) return false;
  int64_t plain = 0, with_sign = 0; // old programs summed signed bytes
  for (size_t i = 0; i < block.size(); ++i) {
    bool own = i >= checksum_field.at && i < checksum_field.at + checksum_field.size;
    auto byte = own ? static_cast<unsigned char>(' ') : static_cast<unsigned char>(block[i]);
    plain += byte;
    with_sign += static_cast<signed char>(byte);
  }
  return static_cast<int64_t>(*told) == plain || static_cast<int64_t>(*told) == with_sign;
}

bool has_magic(TarBlock block) {
  auto magic = bytes_of(block, magic_field);
  return magic.starts_with("ustar") && (magic == gnu_magic || magic[5] == '\0');
}

} // namespace

std::optional<TarHeader> read_tar_header(TarBlock block) {
  if (!checksum_is_right(block)) return std::nullopt;
  TarHeader header;
  auto name = text_of(block, name_field);
  header.full_name = name.size() == name_field.size;
  auto magic = bytes_of(block, magic_field);
  if (auto prefix = text_of(block, prefix_field); magic.starts_with(posix_magic.substr(0, 6)) && !prefix.empty()) {
    header.name.append(prefix).append("/");
    header.full_name = false;
  }
  header.name += name;
  header.type = static_cast<char>(block[type_at]);
  if (header.type == '\0') header.type = '0';
  header.more_map = header.type == 'S' && block[sparse_more_at] != std::byte{0};
  auto text = bytes_of(block, size_field);
  if (auto size = number_of(text))
    header.size = *size;
  else if ((static_cast<unsigned char>(text[0]) & 0xc0) == 0xc0)
    header.wrong = "a negative size";
  else if (static_cast<unsigned char>(text[0]) & 0x80)
    header.wrong = "a size of 2^63 bytes or more";
  else
    header.wrong = "a size that is no number";
  return header;
}

bool is_zero(TarBlock block) {
  return std::ranges::all_of(block, [](std::byte byte) { return byte == std::byte{0}; });
}

bool is_surely_header(TarBlock block) {
  return has_magic(block) && checksum_is_right(block);
}

std::string readable_name(TarBlock block) {
  std::string wrong;
  auto name = plain_name(text_of(block, name_field), wrong);
  return wrong.empty() ? std::string(name) : std::string();
}

std::optional<PaxRecords> read_pax(std::string_view text) {
  PaxRecords records;
  while (!text.empty() && text[0] != '\0') {
    size_t length = 0;
    auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), length);
    size_t digits = static_cast<size_t>(end - text.data());
    if (error != std::errc{} || length > text.size() || length < digits + 3 || text[digits] != ' ' ||
        text[length - 1] != '\n')
      return std::nullopt;
    auto record = text.substr(digits + 1, length - digits - 2);
    auto equals = record.find('=');
    if (equals == std::string_view::npos || equals == 0) return std::nullopt;
    auto key = record.substr(0, equals), value = record.substr(equals + 1);
    if (key == "path") {
      records.path = value;
    } else if (key == "size") {
      uint64_t size = 0;
      auto [stopped, bad] = std::from_chars(value.data(), value.data() + value.size(), size);
      if (bad != std::errc{} || stopped != value.data() + value.size() || size >> 63) return std::nullopt;
      records.size = size;
    } else if (key.starts_with("GNU.sparse.")) {
      records.sparse = true;
    }
    text.remove_prefix(length);
  }
  return records;
}

std::string_view plain_name(std::string_view name, std::string& wrong) {
  while (name.starts_with("./")) name.remove_prefix(2);
  auto control = [](char c) { return static_cast<unsigned char>(c) < 0x20 || c == 0x7f; };
  if (name.empty())
    wrong = "it has no name";
  else if (name.size() > 4096)
    wrong = "its name is longer than 4096 bytes";
  else if (std::ranges::any_of(name, control) || ValidUtf8(name).view() != name)
    wrong = "its name is no text";
  else if (name.front() == '/')
    wrong = fmt::format("its name '{}' is absolute", name);
  else if (name == ".." || name.starts_with("../") || name.ends_with("/..") || name.find("/../") != name.npos)
    wrong = fmt::format("its name '{}' leads out of its folder", name);
  return name;
}

} // namespace fvlm
