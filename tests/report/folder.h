// A folder of its own for each test.
#pragma once
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <unistd.h>

namespace fvlm::test {

class Folder {
 public:
  Folder() : path_(std::filesystem::temp_directory_path() / fmt::format("fvlm-report-{}-{}", getpid(), ++count)) {
    std::filesystem::remove_all(path_);
    std::filesystem::create_directories(path_);
  }
  ~Folder() { std::filesystem::remove_all(path_); }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;
  std::filesystem::path operator/(const std::string& name) const { return path_ / name; }
  const std::filesystem::path& path() const { return path_; }

 private:
  static inline int count = 0;
  std::filesystem::path path_;
};

} // namespace fvlm::test
