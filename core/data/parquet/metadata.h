// What the end of a Parquet file says of it: its columns, and where each of them lies in each group of rows.
#pragma once
#include "data/shards/retrying_file.h"

#include <cstdint>
#include <string>
#include <vector>

namespace fvlm::parquet {

enum class Physical { boolean, int32, int64, int96, float32, float64, bytes, fixed_bytes };
enum class Codec { none, snappy, gzip, lzo, brotli, lz4, zstd, lz4_raw };

// One step on the way from a row to a value.
struct Step {
  enum class Kind { key, item, value } kind; // to a member of an object; to an item of a list; none, but it may be null
  std::string key = {};
  int defined = 0;    // the definition level from which on it is there: not null, or not beyond an empty list
  int repetition = 0; // the repetition level of a list
};

struct Column {
  std::string name; // "image.bytes"
  std::vector<Step> steps;
  Physical type = Physical::bytes;
  int64_t width = 0; // of fixed_bytes
  bool is_text = false, is_unsigned = false;
  int max_definition = 0, max_repetition = 0;
};

// A column of a group of rows.
struct Chunk {
  uint64_t begin = 0, size = 0; // of its pages in the file
  int64_t values = 0;
  Codec codec = Codec::none;
};

struct RowGroup {
  int64_t rows = 0;
  std::vector<Chunk> chunks; // one a column
};

struct Metadata {
  int64_t rows = 0; // of all groups
  std::vector<Column> columns;
  std::vector<RowGroup> groups;
};

// Throws Error(data) for a file that is damaged or is none.
Metadata read_metadata(const RetryingFile& file);

} // namespace fvlm::parquet
