#include "data/parquet/pages.h"

#include "base/error.h"
#include "data/parquet/thrift.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <zlib.h>

namespace fvlm::parquet {
namespace {

using Type = ThriftReader::Type;
using Bytes = std::span<const std::byte>;

uint64_t count_of(int64_t number) {
  if (number < 0) damaged_page("a count is negative");
  return static_cast<uint64_t>(number);
}

// Of any of the kinds of data pages and of dictionaries, whose fields differ in their numbers.
void read_counts(ThriftReader& thrift, PageHeader& header) {
  const bool is_second = header.kind == PageHeader::Kind::data_v2;
  thrift.fields([&](int64_t id, Type type) {
    if (id == 1 && type == Type::i32)
      header.values = count_of(thrift.integer());
    else if (id == (is_second ? 4 : 2) && type == Type::i32)
      header.encoding = thrift.integer();
    else if (is_second && id == 3 && type == Type::i32)
      header.rows = count_of(thrift.integer());
    else if (is_second && id == 5 && type == Type::i32)
      header.definition_bytes = count_of(thrift.integer());
    else if (is_second && id == 6 && type == Type::i32)
      header.repetition_bytes = count_of(thrift.integer());
    else if (is_second && id == 7 && (type == Type::yes || type == Type::no))
      header.is_compressed = type == Type::yes;
    else
      thrift.skip(type);
  });
}

PageHeader read_header(ThriftReader& thrift) {
  PageHeader header;
  thrift.fields([&](int64_t id, Type type) {
    if (id == 1 && type == Type::i32) {
      const int64_t kind = thrift.integer();
      if (kind < 0 || kind > 3) damaged_page("it is of an unknown kind");
      header.kind = static_cast<PageHeader::Kind>(kind);
    } else if (id == 2 && type == Type::i32) {
      header.unpacked = count_of(thrift.integer());
    } else if (id == 3 && type == Type::i32) {
      header.packed = count_of(thrift.integer());
    } else if (id == 4 && type == Type::i32) {
      header.checksum = static_cast<uint32_t>(thrift.integer());
    } else if ((id == 5 || id == 7 || id == 8) && type == Type::record) {
      read_counts(thrift, header);
    } else {
      thrift.skip(type);
    }
  });
  return header;
}

int bits_of(int max_level) {
  return std::bit_width(static_cast<unsigned>(max_level));
}

// Levels of a page of the first version, whose length stands before them.
Bytes take_levels(Bytes& bytes) {
  uint32_t size = 0;
  if (bytes.size() < sizeof size) damaged_page("its levels are missing");
  std::memcpy(&size, bytes.data(), sizeof size);
  if (size > bytes.size() - sizeof size) damaged_page("its levels are longer than it is");
  const Bytes levels = bytes.subspan(sizeof size, size);
  bytes = bytes.subspan(sizeof size + size);
  return levels;
}

std::vector<uint32_t> levels_of(Bytes bytes, int max_level, uint64_t count) {
  auto levels = read_runs(bytes, bits_of(max_level), count);
  if (std::ranges::any_of(levels, [&](uint32_t level) { return level > static_cast<uint32_t>(max_level); }))
    damaged_page("a level is too high");
  return levels;
}

uint64_t starts_in(const std::vector<uint32_t>& repetitions) {
  return static_cast<uint64_t>(std::ranges::count(repetitions, 0U));
}

} // namespace

PageHeader ColumnPages::header_at(uint64_t offset, uint64_t& end) const {
  constexpr uint64_t first_try = 1024, last_try = uint64_t{1} << 24;
  const uint64_t left = chunk_.begin + chunk_.size - offset;
  for (uint64_t size = first_try;; size *= 16) {
    std::vector<std::byte> bytes(std::min(size, left));
    file_.read(offset, bytes);
    ThriftReader thrift(bytes);
    try {
      PageHeader header = read_header(thrift);
      header.begin = offset + thrift.position();
      end = header.begin + header.packed;
      if (header.packed > left - thrift.position()) damaged_page("it is longer than its column");
      return header;
    } catch (const EndOfBytes&) {
      if (size >= left || size >= last_try) throw;
    }
  }
}

// Finds the pages and the rows in them. Of a column with lists, that takes the beginnings of the pages themselves.
void ColumnPages::list() {
  if (is_listed_) return;
  std::vector<Listed> pages;
  uint64_t rows = 0;
  int64_t values = 0;
  for (uint64_t at = chunk_.begin; values < chunk_.values && at < chunk_.begin + chunk_.size;) {
    const PageHeader header = header_at(at, at);
    if (header.kind == PageHeader::Kind::dictionary) dictionary_header_ = header;
    if (header.kind != PageHeader::Kind::data && header.kind != PageHeader::Kind::data_v2) continue;
    constexpr uint64_t max_values = uint64_t{1} << 26; // runs of one value take no bytes to speak of
    if (header.values > max_values) damaged_page("it has too many values");
    if (header.values > static_cast<uint64_t>(chunk_.values - values))
      damaged_page("it has more values than its column");
    values += static_cast<int64_t>(header.values);
    if (header.values == 0) continue;
    uint64_t starts = header.rows.value_or(header.values);
    bool starts_row = true;
    if (column_.max_repetition > 0 && !header.rows) {
      constexpr uint64_t beginning = uint64_t{64} << 10;
      std::vector<std::byte> packed(std::min(header.packed, beginning));
      file_.read(header.begin, packed);
      auto bytes = decompress_beginning(chunk_.codec, packed, std::min(header.unpacked, beginning));
      uint32_t size = 0;
      if (bytes.size() >= sizeof size) std::memcpy(&size, bytes.data(), sizeof size);
      if (size + sizeof size > bytes.size()) bytes = decompress(chunk_.codec, bytes_of(header), header.unpacked);
      Bytes rest = bytes;
      const auto repetitions = levels_of(take_levels(rest), column_.max_repetition, header.values);
      starts = starts_in(repetitions);
      starts_row = repetitions.front() == 0;
    }
    if (rows + starts == 0) damaged_page("its column begins in the middle of a row");
    pages.push_back({header, starts_row ? rows : rows - 1, rows + starts - 1});
    rows += starts;
  }
  if (values != chunk_.values) damaged_page("pages of its column are missing");
  pages_ = std::move(pages);
  is_listed_ = true;
}

uint64_t ColumnPages::rows() {
  list();
  return pages_.empty() ? 0 : pages_.back().last + 1;
}

std::vector<std::byte> ColumnPages::bytes_of(const PageHeader& header) const {
  std::vector<std::byte> bytes(header.packed);
  file_.read(header.begin, bytes);
  if (header.checksum &&
      crc32(0, reinterpret_cast<const Bytef*>(bytes.data()), static_cast<uInt>(bytes.size())) != *header.checksum)
    damaged_page("its checksum is another one");
  return bytes;
}

std::shared_ptr<const Page> ColumnPages::dictionary() {
  if (dictionary_) return dictionary_;
  if (!dictionary_header_) damaged_page("its dictionary is missing");
  auto page = std::make_shared<Page>();
  page->bytes = decompress(chunk_.codec, bytes_of(*dictionary_header_), dictionary_header_->unpacked);
  page->values = read_plain(column_, page->bytes, dictionary_header_->values);
  return dictionary_ = page;
}

std::shared_ptr<const Page> ColumnPages::decode(const PageHeader& header) {
  auto page = std::make_shared<Page>();
  std::vector<std::byte> packed = bytes_of(header);
  Bytes repetitions, definitions, rest;
  if (header.kind == PageHeader::Kind::data_v2) {
    const uint64_t levels = header.repetition_bytes + header.definition_bytes;
    if (levels > packed.size() || levels > header.unpacked) damaged_page("its levels are longer than it is");
    page->bytes.assign(packed.begin(), packed.begin() + static_cast<ptrdiff_t>(levels));
    const auto values = decompress(header.is_compressed ? chunk_.codec : Codec::none, Bytes(packed).subspan(levels),
                                   header.unpacked - levels);
    page->bytes.insert(page->bytes.end(), values.begin(), values.end());
    rest = page->bytes;
    repetitions = rest.first(header.repetition_bytes);
    definitions = rest.subspan(header.repetition_bytes, header.definition_bytes);
    rest = rest.subspan(levels);
  } else {
    page->bytes = decompress(chunk_.codec, packed, header.unpacked);
    rest = page->bytes;
    if (column_.max_repetition > 0) repetitions = take_levels(rest);
    if (column_.max_definition > 0) definitions = take_levels(rest);
  }
  if (column_.max_repetition > 0) page->repetitions = levels_of(repetitions, column_.max_repetition, header.values);
  if (column_.max_definition > 0) page->definitions = levels_of(definitions, column_.max_definition, header.values);

  page->places = header.values;
  uint64_t count = header.values;
  if (column_.max_definition > 0) {
    count = 0;
    for (const uint32_t level : page->definitions) {
      page->before.push_back(count);
      count += level == static_cast<uint32_t>(column_.max_definition);
    }
  }
  for (size_t i = 0; i < header.values; ++i)
    if (page->repetitions.empty() || page->repetitions[i] == 0) page->starts.push_back(i);

  constexpr int64_t plain = 0, plain_dictionary = 2, run_length = 3, dictionary_runs = 8;
  if (header.encoding == plain) {
    page->values = read_plain(column_, rest, count);
  } else if (header.encoding == plain_dictionary || header.encoding == dictionary_runs) {
    page->dictionary = dictionary();
    if (rest.empty()) {
      if (count > 0) damaged_page("its values are missing");
    } else {
      const auto numbers = read_runs(rest.subspan(1), std::to_integer<int>(rest[0]), count);
      for (const uint32_t number : numbers) {
        if (number >= page->dictionary->values.size()) damaged_page("a value is not in its dictionary");
        page->values.push_back(page->dictionary->values[number]);
      }
    }
  } else if (header.encoding == run_length && column_.type == Physical::boolean) {
    for (const uint32_t bit : read_runs(take_levels(rest), 1, count)) {
      page->values.emplace_back();
      page->values.back().integer = bit;
    }
  } else {
    throw Error(ErrorKind::data, "a page has the encoding {}, which is not read", header.encoding)
        .advise("write the file again with the defaults of pyarrow, pandas or datasets");
  }
  return page;
}

std::shared_ptr<const Page> ColumnPages::page(size_t number) {
  if (last_ && last_number_ == number) return last_;
  last_ = decode(pages_[number].header);
  last_number_ = number;
  return last_;
}

std::vector<PlacesOfRow> ColumnPages::row(uint64_t number) {
  list();
  std::vector<PlacesOfRow> places;
  auto at = std::ranges::lower_bound(pages_, number, {}, &Listed::last);
  for (; at != pages_.end() && at->first <= number; ++at) {
    const auto decoded = page(static_cast<size_t>(at - pages_.begin()));
    // Places before the first start belong to the row of the previous page.
    const bool continues = decoded->starts.empty() || decoded->starts.front() > 0;
    const size_t row = number - at->first - (continues ? 1 : 0); // wraps around for that row
    const size_t begin = continues && number == at->first ? 0 : row < decoded->starts.size() ? decoded->starts[row] : 0;
    const size_t end = row + 1 < decoded->starts.size() ? decoded->starts[row + 1] : decoded->places;
    places.push_back({decoded, begin, end});
  }
  return places;
}

uint64_t ColumnPages::weight() const {
  return (last_ ? last_->weight() : 0) + (dictionary_ ? dictionary_->weight() : 0);
}

void ColumnPages::forget() {
  last_ = nullptr;
  dictionary_ = nullptr;
}

} // namespace fvlm::parquet
