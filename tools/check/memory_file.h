// A file in memory that another process writes.
#pragma once
#include "base/descriptor.h"

#include <string>

namespace fvlm::check {

class MemoryFile {
 public:
  MemoryFile(); // throws Error(device)
  int descriptor() const { return descriptor_.get(); }
  std::string text(size_t max_size = std::string::npos) const; // or its last `max_size` bytes, where it is larger

 private:
  Descriptor descriptor_;
};

} // namespace fvlm::check
