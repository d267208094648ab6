// The engine's log, kept in a file besides.
#pragma once
#include "base/log.h"

#include <filesystem>
#include <string_view>

namespace fvlm {

// While it lives, all lines, those for debugging among them, go to the end of the file with their time. A disk that
// does not take them is told on standard error, and the program goes on.
class LogFile {
 public:
  explicit LogFile(const std::filesystem::path& path); // throws Error(output) where it cannot be opened
  ~LogFile();
  void write(LogLevel level, std::string_view text); // to the file alone
  LogFile(const LogFile&) = delete;
  LogFile& operator=(const LogFile&) = delete;
};

} // namespace fvlm
