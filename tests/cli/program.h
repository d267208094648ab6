// Runs the built program in a folder of the test's own.
#pragma once
#include "../shell.h"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <string>

namespace fvlm::test {

struct Program : testing::Test {
  Ran run(const std::string& arguments, const std::string& environment = "") const {
    return shell(fmt::format("cd '{}' && env FVLM_CACHE='{}/cache' {} '{}' {}", scratch.path().string(),
                             scratch.path().string(), environment, FVLM_ENGINE, arguments));
  }
  ScratchFolder scratch;
};

} // namespace fvlm::test
