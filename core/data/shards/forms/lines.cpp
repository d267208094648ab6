// JSON objects, one a line. A line that is none is a broken sample, which is told when it is read.
#include "data/shards/shard_form.h"
#include "data/shards/shard_index.h"

#include <fmt/format.h>

#include <cstring>
#include <vector>

namespace fvlm {

void scan_lines(const RetryingFile& file, IndexWriter& index) {
  constexpr uint64_t chunk_size = uint64_t{1} << 20;
  std::vector<std::byte> chunk;
  uint64_t begin = 0; // of the line
  int64_t number = 1;
  bool is_blank = true;
  const auto end_line = [&](uint64_t end) {
    if (!is_blank) index.add({.key = fmt::format("line {}", number), .members = {{"json", begin, end - begin}}});
    ++number;
    begin = end + 1;
    is_blank = true;
  };
  for (uint64_t at = 0; at < file.size(); at += chunk.size()) {
    chunk.resize(std::min(chunk_size, file.size() - at));
    file.read(at, chunk);
    if (at == 0 && chunk.size() >= 3 && std::memcmp(chunk.data(), "\xef\xbb\xbf", 3) == 0) begin = 3; // a UTF-8 mark
    for (uint64_t i = at == 0 ? begin : 0; i < chunk.size();) {
      const char first = static_cast<char>(chunk[i]);
      if (first == '\n') {
        end_line(at + i++);
      } else if (is_blank && (first == ' ' || first == '\t' || first == '\r')) {
        ++i;
      } else {
        is_blank = false;
        const void* end = std::memchr(chunk.data() + i, '\n', chunk.size() - i);
        i = end ? static_cast<uint64_t>(static_cast<const std::byte*>(end) - chunk.data()) : chunk.size();
      }
    }
  }
  if (begin < file.size()) end_line(file.size());
}

} // namespace fvlm
