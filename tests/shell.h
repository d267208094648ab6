// A command as a user's shell runs it: how it ended, and what it said.
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
  const ScratchFolder said;
  const int status =
      std::system(fmt::format("( {0} ) >'{1}/out' 2>'{1}/err' </dev/null", command, said.path().string()).c_str());
  return {WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status), read_file(said / "out"),
          read_file(said / "err")};
}

} // namespace fvlm::test
