// The engine's log, kept in a file besides.
#pragma once
#include <filesystem>

namespace fvlm {

// While it lives, all lines also go to the end of the file, with their time. A disk that does not take them is told on
// standard error, and the program goes on.
class LogFile {
 public:
  explicit LogFile(const std::filesystem::path& path); // throws Error(data) where it cannot be opened
  ~LogFile();
  LogFile(const LogFile&) = delete;
  LogFile& operator=(const LogFile&) = delete;
};

} // namespace fvlm
