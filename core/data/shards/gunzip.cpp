#include "data/shards/gunzip.h"

#include "base/atomic_file.h"
#include "base/log.h"
#include "base/text.h"

#include <algorithm>
#include <array>
#include <vector>
#include <zlib.h>

namespace fvlm {
namespace {

constexpr size_t buffer_size = size_t{256} << 10;

class Inflater {
 public:
  Inflater() {
    if (inflateInit2(&stream, 15 + 16) != Z_OK) // 16: with gzip's head and checksum
      throw Error(ErrorKind::internal, "zlib could not be started");
  }
  ~Inflater() { inflateEnd(&stream); }
  Inflater(const Inflater&) = delete;
  Inflater& operator=(const Inflater&) = delete;
  z_stream stream{};
};

} // namespace

bool is_gzip(const RetryingFile& file) {
  std::array<std::byte, 3> head{};
  if (file.size() < head.size()) return false;
  file.read(0, head);
  return head == std::array{std::byte{0x1f}, std::byte{0x8b}, std::byte{8}};
}

void gunzip(const RetryingFile& packed, const std::filesystem::path& out, uint64_t most) {
  AtomicFile file(out);
  Inflater inflater;
  z_stream& stream = inflater.stream;
  std::vector<std::byte> input(buffer_size), output(buffer_size);
  uint64_t at = 0, written = 0;
  bool between = false; // gzip members, one behind the other, are one stream
  bool full = false;    // the output was, so there may be more of it
  const char* wrong = nullptr;
  while (!wrong && (at < packed.size() || stream.avail_in > 0 || full)) {
    if (stream.avail_in == 0 && at < packed.size()) {
      auto chunk = std::span(input).first(std::min<uint64_t>(input.size(), packed.size() - at));
      packed.read(at, chunk);
      at += chunk.size();
      stream.next_in = reinterpret_cast<Bytef*>(chunk.data());
      stream.avail_in = static_cast<uInt>(chunk.size());
    }
    if (between && stream.avail_in > 0 && *stream.next_in == 0) break; // padding
    if (stream.avail_in > 0) between = false;
    stream.next_out = reinterpret_cast<Bytef*>(output.data());
    stream.avail_out = static_cast<uInt>(output.size());
    int status = inflate(&stream, Z_NO_FLUSH);
    auto made = std::span(output).first(output.size() - stream.avail_out);
    full = stream.avail_out == 0;
    written += made.size();
    if (written > most)
      throw Error(ErrorKind::data, fmt::format("it unpacks to more than {}", human_bytes(most)))
          .at(packed.path().string())
          .advise("unpack it where there is room, and name the .tar in the recipe");
    file.write(made);
    if (status == Z_STREAM_END) {
      between = true;
      inflateReset(&stream);
    } else if (status != Z_OK && status != Z_BUF_ERROR) {
      wrong = stream.msg ? stream.msg : "damaged data";
    }
  }
  if (!wrong && !between) wrong = "it ends too early";
  if (wrong)
    log_warning("{}: damaged before byte {}: {}; what comes before that is used", packed.path().string(),
                at - stream.avail_in, wrong);
  file.commit();
}

} // namespace fvlm
