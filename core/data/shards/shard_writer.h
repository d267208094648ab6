// ShardWriter: a tar shard, the same bytes for the same members, there whole or not at all.
#pragma once
#include "base/atomic_file.h"

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>

namespace fvlm {

class ShardWriter {
 public:
  // The folder must be there. Until commit() nothing appears at `path`.
  explicit ShardWriter(const std::filesystem::path& path) : file_(path), where_(path.string()) {}

  // A regular file "KEY.json" of mode 0644 and time 0. The members of a sample come one after the other, as readers of
  // shards want it. Throws Error(data) for a name that is empty, absolute or leads out of the folder it is unpacked in.
  void add(std::string_view name, std::span<const std::byte> bytes);
  void add(std::string_view name, std::string_view text) { add(name, std::as_bytes(std::span(text))); }

  uint64_t size() const { return size_; } // bytes so far
  void commit();

 private:
  void header(std::string_view name, uint64_t size, char type);
  void body(std::span<const std::byte> bytes);

  AtomicFile file_;
  std::string where_;
  uint64_t size_ = 0;
};

} // namespace fvlm
