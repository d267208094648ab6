// Runs a command by the shell: exit status and output.
#pragma once
#include "base/file.h"
#include "base/scratch_folder.h"

#include <fmt/format.h>

#include <cstdlib>
#include <string>
#include <sys/wait.h>

namespace fvlm::test {

struct Ran {
  int code; // 128 + signal where one ended it
  std::string out, err;
};

inline Ran shell(const std::string& command) {
  const ScratchFolder output;
  const int status =
      std::system(fmt::format("( {0} ) >'{1}/out' 2>'{1}/err' </dev/null", command, output.path().string()).c_str());
  return {WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status), read_file(output / "out"),
          read_file(output / "err")};
}

} // namespace fvlm::test
