#include "data/parquet/metadata.h"

#include "data/parquet/thrift.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>

namespace fvlm::parquet {
namespace {

using Type = ThriftReader::Type;

constexpr uint64_t max_footer_bytes = uint64_t{1} << 30;
constexpr size_t max_columns = 10'000;

[[noreturn]] void not_whole(const std::string& what) {
  throw Error(ErrorKind::data, "it is no whole Parquet file: " + what);
}

// A node of the schema, whose children follow it.
struct Element {
  std::string name;
  int64_t type = -1, width = 0, repetition = 0, children = 0, converted = -1;
  bool is_text = false, is_list = false, is_unsigned = false;
};

Element read_element(ThriftReader& thrift) {
  Element element;
  thrift.fields([&](int64_t id, Type type) {
    if (id == 1 && type == Type::i32)
      element.type = thrift.integer();
    else if (id == 2 && type == Type::i32)
      element.width = thrift.integer();
    else if (id == 3 && type == Type::i32)
      element.repetition = thrift.integer();
    else if (id == 4 && type == Type::binary)
      element.name = thrift.text();
    else if (id == 5 && type == Type::i32)
      element.children = thrift.integer();
    else if (id == 6 && type == Type::i32)
      element.converted = thrift.integer();
    else if (id == 10 && type == Type::record) // a union, of which the field's id tells the type
      thrift.fields([&](int64_t kind, Type inner) {
        element.is_text = element.is_text || kind == 1 || kind == 4 || kind == 12;
        element.is_list = element.is_list || kind == 2 || kind == 3;
        thrift.skip(inner);
      });
    else
      thrift.skip(type);
  });
  constexpr int64_t utf8 = 0, map = 1, map_key_value = 2, list = 3, enumeration = 4, json = 19, uint8 = 11, uint64 = 14;
  const int64_t kind = element.converted;
  element.is_text = element.is_text || kind == utf8 || kind == enumeration || kind == json;
  element.is_list = element.is_list || kind == list || kind == map || kind == map_key_value;
  element.is_unsigned = kind >= uint8 && kind <= uint64;
  return element;
}

class Schema {
 public:
  explicit Schema(std::vector<Element> elements) : elements_(std::move(elements)) {}

  std::vector<Column> columns() {
    if (elements_.empty()) not_whole("its schema is empty");
    const int64_t children = elements_[at_++].children;
    for (int64_t i = 0; i < children; ++i) walk({}, false, false);
    return std::move(columns_);
  }

 private:
  // `in_list_group`: the parent is a list, whose only child is the group that repeats; `in_list`: the parent is that
  // group, whose only child is the item itself.
  void walk(Column above, bool in_list_group, bool in_list) {
    if (at_ >= elements_.size() || above.steps.size() > 64) not_whole("its schema is cut short");
    const Element element = elements_[at_++];
    enum { required, optional, repeated };
    if (element.repetition < required || element.repetition > repeated)
      not_whole("its schema has an unknown repetition");
    Column column = std::move(above);
    column.name += (column.name.empty() ? "" : ".") + element.name;
    column.max_definition += element.repetition != required;
    column.max_repetition += element.repetition == repeated;
    const auto add = [&](Step::Kind kind, int defined) {
      column.steps.push_back({kind, kind == Step::Kind::key ? element.name : "", defined, column.max_repetition});
    };
    if (element.repetition == repeated) {
      if (!in_list_group) add(Step::Kind::key, 0);
      add(Step::Kind::item, column.max_definition);
    } else {
      add(in_list ? Step::Kind::value : Step::Kind::key, element.repetition == optional ? column.max_definition : 0);
    }
    if (element.children == 0) return leaf(std::move(column), element);
    if (element.children < 0 || element.children > static_cast<int64_t>(elements_.size()))
      not_whole("its schema is damaged");
    const bool holds_item = in_list_group && element.repetition == repeated && element.children == 1;
    for (int64_t i = 0; i < element.children; ++i) walk(column, element.is_list && element.children == 1, holds_item);
  }

  void leaf(Column column, const Element& element) {
    if (element.type < 0 || element.type > static_cast<int64_t>(Physical::fixed_bytes))
      not_whole("a column has an unknown type");
    if (columns_.size() == max_columns) not_whole(fmt::format("it has more than {} columns", max_columns));
    column.type = static_cast<Physical>(element.type);
    column.width = element.width;
    column.is_text = element.is_text;
    column.is_unsigned = element.is_unsigned;
    if (column.type == Physical::fixed_bytes && (column.width < 1 || column.width > (1 << 30)))
      not_whole("a column has a wrong width");
    columns_.push_back(std::move(column));
  }

  std::vector<Element> elements_;
  size_t at_ = 0;
  std::vector<Column> columns_;
};

Chunk read_chunk(ThriftReader& thrift, uint64_t file_size) {
  Chunk chunk;
  int64_t codec = 0, pages = -1, dictionary = -1, size = -1;
  thrift.fields([&](int64_t id, Type type) {
    if (id != 3 || type != Type::record) return thrift.skip(type);
    thrift.fields([&](int64_t inner, Type inner_type) {
      if (inner == 4 && inner_type == Type::i32)
        codec = thrift.integer();
      else if (inner == 5 && inner_type == Type::i64)
        chunk.values = thrift.integer();
      else if (inner == 7 && inner_type == Type::i64)
        size = thrift.integer();
      else if (inner == 9 && inner_type == Type::i64)
        pages = thrift.integer();
      else if (inner == 11 && inner_type == Type::i64)
        dictionary = thrift.integer();
      else
        thrift.skip(inner_type);
    });
  });
  const int64_t begin = dictionary > 0 ? std::min(dictionary, pages) : pages;
  if (chunk.values == 0) return {};
  if (begin < 4 || size < 0 || static_cast<uint64_t>(begin) > file_size ||
      static_cast<uint64_t>(size) > file_size - static_cast<uint64_t>(begin))
    not_whole("a column lies outside of the file");
  if (codec < 0 || codec > static_cast<int64_t>(Codec::lz4_raw)) not_whole("a column has an unknown compression");
  const auto is_read = {Codec::none, Codec::snappy, Codec::gzip, Codec::zstd};
  if (std::ranges::find(is_read, static_cast<Codec>(codec)) == is_read.end())
    throw Error(ErrorKind::data, "a column is compressed by LZO, Brotli or LZ4, which are not read")
        .advise("write the file again with compression=\"snappy\", \"zstd\" or \"gzip\"");
  chunk.begin = static_cast<uint64_t>(begin);
  chunk.size = static_cast<uint64_t>(size);
  chunk.codec = static_cast<Codec>(codec);
  return chunk;
}

RowGroup read_group(ThriftReader& thrift, uint64_t file_size) {
  RowGroup group;
  thrift.fields([&](int64_t id, Type type) {
    if (id == 1 && type == Type::list)
      thrift.items([&](Type item) {
        if (item != Type::record) not_whole("its row groups are damaged");
        group.chunks.push_back(read_chunk(thrift, file_size));
      });
    else if (id == 3 && type == Type::i64)
      group.rows = thrift.integer();
    else
      thrift.skip(type);
  });
  if (group.rows < 0) not_whole("a row group has a negative number of rows");
  return group;
}

} // namespace

Metadata read_metadata(const RetryingFile& file) {
  constexpr uint64_t tail_size = 8;
  std::array<std::byte, tail_size> tail{};
  if (file.size() < 2 * tail_size) not_whole("it is too short");
  file.read(file.size() - tail_size, tail);
  if (std::memcmp(tail.data() + 4, "PARE", 4) == 0)
    throw Error(ErrorKind::data, "it is an encrypted Parquet file, which is not read")
        .advise("write the file again without encryption");
  if (std::memcmp(tail.data() + 4, "PAR1", 4) != 0) not_whole("its end is missing");
  uint32_t size = 0;
  std::memcpy(&size, tail.data(), sizeof size);
  if (size > file.size() - tail_size || size > max_footer_bytes) not_whole("its footer has a wrong length");
  std::vector<std::byte> footer(size);
  file.read(file.size() - tail_size - size, footer);

  Metadata metadata;
  std::vector<Element> elements;
  ThriftReader thrift(footer);
  thrift.fields([&](int64_t id, Type type) {
    if (id == 2 && type == Type::list)
      thrift.items([&](Type item) {
        if (item != Type::record) not_whole("its schema is damaged");
        elements.push_back(read_element(thrift));
      });
    else if (id == 3 && type == Type::i64)
      metadata.rows = thrift.integer();
    else if (id == 4 && type == Type::list)
      thrift.items([&](Type item) {
        if (item != Type::record) not_whole("its row groups are damaged");
        metadata.groups.push_back(read_group(thrift, file.size()));
      });
    else
      thrift.skip(type);
  });
  if (thrift.position() != footer.size()) not_whole("its footer is damaged");
  metadata.columns = Schema(std::move(elements)).columns();
  for (const RowGroup& group : metadata.groups)
    if (group.chunks.size() != metadata.columns.size()) not_whole("a row group has another number of columns");
  return metadata;
}

} // namespace fvlm::parquet
