// ShardWriter: writes a tar shard atomically and deterministically.
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

  // Adds a regular file such as "KEY.json" with mode 0644 and time 0. The members of a sample must be consecutive.
  // Throws Error(data) for a name that is empty, absolute or contains "..".
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
