// Memory of the host that several of its processes share. It has no name in a file system, so that nothing is left of
// it when they are killed.
#pragma once
#include "base/descriptor.h"

#include <cstddef>
#include <string>

namespace fvlm::dist {

class SharedMemory {
 public:
  // Zeroes. Throws Error(device) where the system gives none.
  static SharedMemory create(size_t bytes);
  // What another process of this host, which still lives, created and calls so. Throws Error(device) where it cannot be
  // opened.
  static SharedMemory open(const std::string& name);
  ~SharedMemory();
  SharedMemory(SharedMemory&& other) noexcept;
  SharedMemory& operator=(SharedMemory&&) = delete;

  const std::string& name() const { return name_; }
  std::byte* data() const { return data_ + header; }
  size_t bytes() const { return bytes_ - header; }

 private:
  // A page in front of the memory has its key, by which a process of another host is known that happens to have the
  // same number.
  static constexpr size_t header = 4096;
  SharedMemory(Descriptor file, size_t bytes, std::string name);

  Descriptor file_;
  size_t bytes_;
  std::string name_;
  std::byte* data_;
};

} // namespace fvlm::dist
