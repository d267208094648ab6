// header_test.cpp: each header of the SDK compiles on its own, in every language it supports, without a warning.
#include "sdk/plugin_builder.h"

#include <fmt/format.h>

#include <algorithm>

using namespace fvlm::plugin_builder;

namespace {

struct Compiler {
  const char* name;
  const char* standard;
  bool cpp;
  bool all; // each header separately, or only the one that includes them all
};

void PrintTo(const Compiler& compiler, std::ostream* out) {
  *out << compiler.name << "_" << compiler.standard;
}

class HeaderTest : public PluginBuilder, public testing::WithParamInterface<Compiler> {
 protected:
  // Writes one source file per header, which includes nothing else.
  std::string sources(const std::set<std::string>& extensions, const std::string& language) {
    std::string files;
    for (const auto& entry : fs::recursive_directory_iterator(include / "fvlm/")) {
      if (!extensions.contains(entry.path().extension())) continue;
      const std::string name = fs::relative(entry.path(), include / "fvlm/").string();
      if (!GetParam().all && name != (GetParam().cpp ? "fvlm.hpp" : "fvlm.h")) continue;
      if (name == "cuda.hpp") continue; // needs the CUDA toolkit: CudaHeader below
      std::string file = name + language;
      std::replace(file.begin(), file.end(), '/', '_');
      const std::string line = fmt::format("#include <fvlm/{}>\n", name);
      write(file, line + line);
      files.append(" ").append(file);
      ++count;
    }
    return files;
  }
  int count = 0;
};

TEST_P(HeaderTest, CompilesAloneWithoutAWarning) {
  const Compiler& compiler = GetParam();
  if (!has_tool(compiler.name)) GTEST_SKIP() << compiler.name << " is not installed";
  const std::string files = compiler.cpp ? sources({".h", ".hpp"}, ".cpp") : sources({".h"}, ".c");
  ASSERT_GE(count, !compiler.all ? 1 : compiler.cpp ? 21 : 14) << files;
  const std::string extra = compiler.cpp ? " -Wnon-virtual-dtor -Woverloaded-virtual" : "";
  const Result result = run(std::string(compiler.name) + " -std=" + compiler.standard +
                                " -Wall -Wextra -Wpedantic -Wshadow -Werror -fsyntax-only" + extra + " -I'" +
                                include.string() + "'" + files,
                            folder);
  EXPECT_EQ(result.status, 0) << result.output;
}

INSTANTIATE_TEST_SUITE_P(Compilers, HeaderTest,
                         testing::Values(Compiler{"gcc", "c99", false, true}, Compiler{"clang", "c99", false, true},
                                         Compiler{"gcc", "c11", false, false}, Compiler{"g++", "c++17", true, true},
                                         Compiler{"clang++", "c++17", true, true},
                                         Compiler{"g++", "c++20", true, false},
                                         Compiler{"clang++", "c++20", true, false}),
                         [](const auto& tried) {
                           std::string name = std::string(tried.param.name) + "_" + tried.param.standard;
                           std::replace(name.begin(), name.end(), '+', 'x');
                           return name;
                         });

using CudaHeader = PluginBuilder;

TEST_F(CudaHeader, CompilesAloneWithoutAWarning) {
  if (nvcc().empty()) GTEST_SKIP() << "no CUDA toolkit";
  write("alone.cu", "#include <fvlm/cuda.hpp>\n");
  const Result result = run(nvcc() +
                                " -std=c++17 -Werror all-warnings -Xcompiler -Wall,-Wextra,-Werror -arch=sm_90a -c "
                                "alone.cu -I'" +
                                include.string() + "'",
                            folder);
  EXPECT_EQ(result.status, 0) << result.output;
  EXPECT_EQ(result.output, "");
}

} // namespace
