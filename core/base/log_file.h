// A log file in addition to standard error.
#pragma once
#include "base/log.h"

#include <filesystem>
#include <string_view>

namespace fvlm {

// For the lifetime of the object, appends all log lines, including debug ones, with their time to a file. A failure to
// write is reported on standard error, and the program continues.
class LogFile {
 public:
  explicit LogFile(const std::filesystem::path& path); // throws Error(output) where it cannot be opened
  ~LogFile();
  void write(LogLevel level, std::string_view text); // to the file alone
  LogFile(const LogFile&) = delete;
  LogFile& operator=(const LogFile&) = delete;
};

} // namespace fvlm
