// plugin_builder.h: a fixture that builds plugins in a scratch folder outside the checkout, by shell commands.
#pragma once
#include "base/file.h"
#include "base/scratch_folder.h"

#include <gtest/gtest.h>

#include <array>
#include <cstdio>
#include <filesystem>
#include <set>
#include <sstream>
#include <string>
#include <sys/wait.h>
#include <unistd.h>

namespace fvlm::plugin_builder {

namespace fs = std::filesystem;

struct Result {
  int status = -1; // the exit status, or 128 + signal
  std::string output;
};

// Runs a shell command and captures both of its output streams.
inline Result run(const std::string& command, const fs::path& folder = ".") {
  Result result;
  FILE* pipe = popen(("cd '" + folder.string() + "' && ( " + command + " ) 2>&1").c_str(), "r");
  if (!pipe) return result;
  std::array<char, 4096> buffer;
  for (size_t got; (got = fread(buffer.data(), 1, buffer.size(), pipe)) > 0;) result.output.append(buffer.data(), got);
  const int status = pclose(pipe);
  result.status = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  return result;
}

inline bool has_tool(const std::string& name) {
  return run("command -v " + name).status == 0;
}

// The path of nvcc, or empty if there is no CUDA toolkit.
inline std::string nvcc() {
  for (const char* name : {"nvcc", "/usr/local/cuda/bin/nvcc"})
    if (has_tool(name)) return name;
  return "";
}

// The dynamic symbols that a library exports.
inline std::set<std::string> exported(const fs::path& library) {
  std::set<std::string> names;
  std::istringstream lines(run("nm -D --defined-only -P '" + library.string() + "'").output);
  for (std::string line; std::getline(lines, line);) names.insert(line.substr(0, line.find(' ')));
  return names;
}

class PluginBuilder : public testing::Test {
 protected:
  fs::path write(const std::string& name, const std::string& text) {
    fs::create_directories((folder / name).parent_path());
    write_file_atomic(folder / name, text);
    return folder / name;
  }

  const ScratchFolder scratch;
  const fs::path folder = scratch.path();
  const fs::path build = FVLM_BUILD_FOLDER, source = FVLM_SOURCE_FOLDER;
  const fs::path include = build / "include";
};

} // namespace fvlm::plugin_builder
