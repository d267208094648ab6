// What the tests of this room share: a folder of their own, and the words of an Error.
#pragma once
#include "base/error.h"
#include "base/file.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>
#include <unistd.h>

namespace fvlm::testing_weights {

namespace fs = std::filesystem;

class Folder {
 public:
  Folder() {
    const auto* test = testing::UnitTest::GetInstance()->current_test_info();
    std::string name = std::string("fvlm-weights-") + std::to_string(getpid()) + "-" + test->name();
    for (char& c : name)
      if (c == '/') c = '_';
    path_ = fs::temp_directory_path() / name;
    fs::remove_all(path_);
    fs::create_directories(path_);
  }
  ~Folder() {
    std::error_code ignored;
    fs::remove_all(path_, ignored);
  }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;
  fs::path operator/(std::string_view name) const { return path_ / name; }
  const fs::path& path() const { return path_; }

 private:
  fs::path path_;
};

// Header and data put together as they come, right or wrong.
inline std::string safetensors_bytes(const std::string& header, size_t data_bytes) {
  uint64_t length = header.size();
  return std::string(reinterpret_cast<const char*>(&length), sizeof length) + header + std::string(data_bytes, '\1');
}

// Without the fsync of write_file_atomic, which takes its time.
inline void put_file(const fs::path& path, std::string_view content) {
  std::ofstream(path, std::ios::binary) << content;
}

// Skips the test where the oracles' Python lacks a module: `scripts/setup --oracles` brings it.
inline void skip_without(const std::string& module) {
  std::string command = std::string(FVLM_PYTHON) + " -c 'import importlib.util as u, sys; sys.exit(u.find_spec(\"" +
                        module + "\") is None)'";
  if (std::system(command.c_str()) != 0) GTEST_SKIP() << "no Python module " << module << " at " << FVLM_PYTHON;
}

// The text of the data error that `action` ends with.
template <class Action>
std::string data_error_of(Action action) {
  try {
    action();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::data) << error.text();
    EXPECT_FALSE(error.where().empty()) << error.text();
    return error.text();
  } catch (const std::exception& error) {
    ADD_FAILURE() << "not an Error: " << error.what();
    return "";
  }
  ADD_FAILURE() << "no error";
  return "";
}

} // namespace fvlm::testing_weights
