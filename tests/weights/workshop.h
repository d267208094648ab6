// Helpers of these tests: a temporary folder, and the text of an Error.
#pragma once
#include "base/error.h"
#include "base/file.h"
#include "base/scratch_folder.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>

namespace fvlm::testing_weights {

namespace fs = std::filesystem;

using Folder = ScratchFolder;

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
