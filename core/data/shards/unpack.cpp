#include "data/shards/unpack.h"

#include "base/atomic_file.h"
#include "base/log.h"
#include "base/text.h"

#include <algorithm>
#include <array>
#include <memory>
#include <span>
#include <string_view>
#include <vector>
#include <zlib.h>
#include <zstd.h>

namespace fvlm {
namespace {

constexpr size_t buffer_size = size_t{256} << 10;

class Decompressor {
 public:
  virtual ~Decompressor() = default;
  // Takes from `in` and fills `out`, as far as there is input and room; both become what is left. Returns what is wrong
  // with the input, or null.
  virtual const char* step(std::span<std::byte>& in, std::span<std::byte>& out) = 0;
  bool between = false; // streams, one behind the other, are one
};

class Gzip final : public Decompressor {
 public:
  Gzip() {
    if (inflateInit2(&stream_, 15 + 16) != Z_OK) // 16: with gzip's head and checksum
      throw Error(ErrorKind::internal, "zlib could not be started");
  }
  ~Gzip() override { inflateEnd(&stream_); }

  const char* step(std::span<std::byte>& in, std::span<std::byte>& out) override {
    if (between && !in.empty() && in[0] == std::byte{0}) { // padding
      in = in.last(0);
      return nullptr;
    }
    if (!in.empty()) between = false;
    stream_.next_in = reinterpret_cast<Bytef*>(in.data());
    stream_.avail_in = static_cast<uInt>(in.size());
    stream_.next_out = reinterpret_cast<Bytef*>(out.data());
    stream_.avail_out = static_cast<uInt>(out.size());
    const int status = inflate(&stream_, Z_NO_FLUSH);
    in = in.last(stream_.avail_in);
    out = out.last(stream_.avail_out);
    if (status == Z_STREAM_END) {
      between = true;
      inflateReset(&stream_);
    } else if (status != Z_OK && status != Z_BUF_ERROR) {
      return stream_.msg ? stream_.msg : "damaged data";
    }
    return nullptr;
  }

 private:
  z_stream stream_{};
};

class Zstandard final : public Decompressor {
 public:
  Zstandard() : stream_(ZSTD_createDCtx(), ZSTD_freeDCtx) {
    if (!stream_) throw Error(ErrorKind::internal, "zstd could not be started");
  }

  const char* step(std::span<std::byte>& in, std::span<std::byte>& out) override {
    ZSTD_inBuffer input{in.data(), in.size(), 0};
    ZSTD_outBuffer output{out.data(), out.size(), 0};
    const size_t status = ZSTD_decompressStream(stream_.get(), &output, &input);
    in = in.subspan(input.pos);
    out = out.subspan(output.pos);
    if (ZSTD_isError(status)) return ZSTD_getErrorName(status);
    if (input.pos > 0 || output.pos > 0) between = status == 0;
    return nullptr;
  }

 private:
  std::unique_ptr<ZSTD_DCtx, decltype(&ZSTD_freeDCtx)> stream_;
};

template <class T>
std::unique_ptr<Decompressor> make() {
  return std::make_unique<T>();
}

struct Compression {
  std::string_view magic;
  std::unique_ptr<Decompressor> (*make)();
};
constexpr Compression compressions[] = {{"\x1f\x8b\x08", make<Gzip>}, {"\x28\xb5\x2f\xfd", make<Zstandard>}};

const Compression* compression_of(const RetryingFile& file) {
  std::array<std::byte, 4> head{};
  if (file.size() < head.size()) return nullptr;
  file.read(0, head);
  const std::string_view text(reinterpret_cast<const char*>(head.data()), head.size());
  const auto* found =
      std::ranges::find_if(compressions, [&](const Compression& each) { return text.starts_with(each.magic); });
  return found == std::end(compressions) ? nullptr : found;
}

} // namespace

bool is_packed(const RetryingFile& file) {
  return compression_of(file) != nullptr;
}

void unpack(const RetryingFile& packed, const std::filesystem::path& out, uint64_t most, std::string_view mark) {
  AtomicFile file(out);
  const auto decompressor = compression_of(packed)->make();
  std::vector<std::byte> input(buffer_size), output(buffer_size);
  std::span<std::byte> unread;
  uint64_t at = 0, written = 0;
  bool full = false; // the output was, so there may be more of it
  const char* wrong = nullptr;
  while (!wrong && (at < packed.size() || !unread.empty() || full)) {
    if (unread.empty() && at < packed.size()) {
      unread = std::span(input).first(std::min<uint64_t>(input.size(), packed.size() - at));
      packed.read(at, unread);
      at += unread.size();
    }
    std::span<std::byte> room = output;
    wrong = decompressor->step(unread, room);
    const auto made = std::span(output).first(output.size() - room.size());
    full = room.empty();
    written += made.size();
    if (written > most)
      throw Error(ErrorKind::data, "it unpacks to more than {}", human_bytes(most))
          .at(packed.path().string())
          .advise("unpack it where there is room, and name the unpacked file in the recipe");
    file.write(made);
  }
  if (!wrong && !decompressor->between) wrong = "it ends too early";
  if (wrong) {
    log_warning("{}: damaged before byte {}: {}; what comes before that is used", packed.path().string(),
                at - unread.size(), wrong);
    file.write(mark);
  }
  file.commit();
}

} // namespace fvlm
