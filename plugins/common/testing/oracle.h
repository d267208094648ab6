// oracle.h: reference values by PyTorch: runs test/oracle.py and reads the files that it writes.
#pragma once

#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <stdexcept>
#include <string>
#include <unistd.h>
#include <vector>

namespace fvlm::testing {

inline const char* no_torch = FVLM_PYTHON " cannot import torch: run ./scripts/setup --oracles";

inline bool python_has_torch() {
  static const bool has = std::system("'" FVLM_PYTHON "' -c 'import torch' >/dev/null 2>&1") == 0;
  return has;
}

// Runs `oracle.py FOLDER arguments`. The folder is deleted with the object.
class Oracle {
 public:
  explicit Oracle(const std::string& arguments) {
    std::string name = (std::filesystem::temp_directory_path() / "fvlm-oracle-XXXXXX").string();
    if (!mkdtemp(name.data())) throw std::runtime_error("no temporary folder");
    folder_ = name;
    const std::string command = "'" FVLM_PYTHON "' '" FVLM_TEST_SOURCE "/oracle.py' '" + name + "' " + arguments;
    if (std::system(command.c_str()) != 0) throw std::runtime_error("failed: " + command);
  }
  ~Oracle() { std::filesystem::remove_all(folder_); }
  Oracle(const Oracle&) = delete;
  Oracle& operator=(const Oracle&) = delete;

  template <class Element>
  std::vector<Element> read(const char* file) const {
    std::vector<Element> values(std::filesystem::file_size(folder_ / file) / sizeof(Element));
    std::FILE* stream = std::fopen((folder_ / file).c_str(), "rb");
    const std::size_t got = std::fread(values.data(), sizeof(Element), values.size(), stream);
    std::fclose(stream);
    if (got != values.size()) throw std::runtime_error(std::string("short file ") + file);
    return values;
  }
  std::vector<float> floats(const char* file) const { return read<float>(file); }

 private:
  std::filesystem::path folder_;
};

} // namespace fvlm::testing
