// The pages of one column in one group of rows, read one at a time as rows ask for them.
#pragma once
#include "data/parquet/encoding.h"

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

namespace fvlm::parquet {

struct PageHeader {
  enum class Kind { data, index, dictionary, data_v2 } kind = Kind::data;
  uint64_t begin = 0, packed = 0, unpacked = 0; // its bytes in the file, behind the header; and decompressed
  uint64_t values = 0;
  int64_t encoding = 0;
  std::optional<uint64_t> rows; // of data_v2
  uint64_t definition_bytes = 0, repetition_bytes = 0;
  bool is_compressed = true;
  std::optional<uint32_t> checksum;
};

// Decoded: what stands at each place of a column, with nulls and ends of lists between the values.
struct Page {
  std::vector<std::byte> bytes; // that values are views of
  std::shared_ptr<const Page> dictionary;
  std::vector<uint32_t> definitions, repetitions; // empty: all are 0 and the highest
  std::vector<Value> values;                      // of the places that have the highest definition level
  size_t places = 0;
  std::vector<size_t> starts; // the place where each of its rows starts
  std::vector<size_t> before; // how many values stand before each place; empty: as many as places

  uint64_t weight() const { // in memory, without the dictionary
    return bytes.size() + (definitions.size() + repetitions.size()) * 4 + values.size() * sizeof(Value) +
           (starts.size() + before.size()) * sizeof(size_t);
  }
};

// Where a row stands: the places [begin, end) of a page, and of those that follow it until the row ends.
struct PlacesOfRow {
  std::shared_ptr<const Page> page;
  size_t begin, end;
};

class ColumnPages {
 public:
  // All must outlive it.
  ColumnPages(const RetryingFile& file, const Column& column, const Chunk& chunk)
      : file_(file), column_(column), chunk_(chunk) {}

  // Throws Error(data) for damaged pages, ReadError for a failing disk. [one thread]
  uint64_t rows();
  std::vector<PlacesOfRow> row(uint64_t number);
  uint64_t weight() const; // of the pages that are decoded
  void forget();           // them

 private:
  struct Listed {
    PageHeader header;
    uint64_t first = 0, last = 0; // row: of its first place and of its last
  };

  void list();
  PageHeader header_at(uint64_t offset, uint64_t& end) const;
  std::vector<std::byte> bytes_of(const PageHeader& header) const;
  std::shared_ptr<const Page> page(size_t number);
  std::shared_ptr<const Page> decode(const PageHeader& header);
  std::shared_ptr<const Page> dictionary();

  const RetryingFile& file_;
  const Column& column_;
  const Chunk& chunk_;
  bool is_listed_ = false;
  std::vector<Listed> pages_;
  std::optional<PageHeader> dictionary_header_;
  std::shared_ptr<const Page> dictionary_, last_;
  size_t last_number_ = 0;
};

} // namespace fvlm::parquet
