// package_test.cpp: the installed SDK works after it was moved, from CMake and from pkg-config.
#include "sdk/plugin_builder.h"

using namespace fvlm::plugin_builder;

namespace {

class PackageTest : public PluginBuilder {
 protected:
  void SetUp() override {
    const fs::path first = folder / "first";
    prefix = folder / "moved";
    const Result installed =
        run("cmake --install '" + build.string() + "' --component sdk --prefix '" + first.string() + "'");
    ASSERT_EQ(installed.status, 0) << installed.output;
    fs::rename(first, prefix);
  }

  // A template's sources under a name of their own, as `plugin new` would write them.
  void copy_template(const std::string& kind, const std::string& lang, const std::string& name) {
    for (const auto& entry : fs::directory_iterator(prefix / "share/fvlm/template" / kind / lang)) {
      std::string text = fvlm::read_file(entry.path());
      for (size_t at; (at = text.find("@NAME@")) != std::string::npos;) text.replace(at, 6, name);
      write(name + "/" + entry.path().filename().string(), text);
    }
  }

  Result configure(const std::string& name, const std::string& options = "") {
    return run("cmake -G Ninja -S " + name + " -B " + name + "/build -DCMAKE_BUILD_TYPE=Release -DCMAKE_PREFIX_PATH='" +
                   prefix.string() + "' " + options,
               folder);
  }

  fs::path prefix;
};

TEST_F(PackageTest, MentionsNoPathOfTheBuildMachine) {
  for (const std::string& place : {source.string(), build.string(), (folder / "first").string()}) {
    const Result found = run("grep -rlF '" + place + "' .", prefix);
    EXPECT_EQ(found.output, "") << "these mention " << place;
  }
}

TEST_F(PackageTest, FindPackageBuildsAFolderThatTheEngineLoads) {
  copy_template("packer", "c", "packer-c");
  write("packer-c/CMakeLists.txt", "cmake_minimum_required(VERSION 3.24)\n"
                                   "project(packer-c LANGUAGES C)\n"
                                   "find_package(fvlm-sdk 1.0 REQUIRED)\n"
                                   "fvlm_add_plugin(packer-c SOURCES plugin.c)\n");
  const Result configured = configure("packer-c");
  ASSERT_EQ(configured.status, 0) << configured.output;
  const Result built = run("cmake --build packer-c/build && cmake --install packer-c/build --prefix out", folder);
  ASSERT_EQ(built.status, 0) << built.output;
  for (const fs::path& made : {folder / "packer-c/build/packer-c", folder / "out/lib/fvlm/plugins/packer-c"}) {
    EXPECT_EQ(exported(made / "packer-c.so"), std::set<std::string>{"fvlm_plugin_entry_v1"});
    EXPECT_EQ(fvlm::read_file(made / "plugin.toml"), fvlm::read_file(folder / "packer-c/plugin.toml"));
  }
}

TEST_F(PackageTest, FindPackageAllowsANewerStandard) {
  copy_template("packer", "cpp", "packer-cpp");
  write("packer-cpp/CMakeLists.txt", "cmake_minimum_required(VERSION 3.24)\n"
                                     "project(packer-cpp LANGUAGES CXX)\n"
                                     "find_package(fvlm-sdk REQUIRED)\n"
                                     "fvlm_add_plugin(packer-cpp SOURCES plugin.cpp)\n");
  const Result configured = configure("packer-cpp", "-DCMAKE_CXX_STANDARD=20 -DCMAKE_CXX_EXTENSIONS=OFF");
  ASSERT_EQ(configured.status, 0) << configured.output;
  const Result built = run("cmake --build packer-cpp/build -v", folder);
  ASSERT_EQ(built.status, 0) << built.output;
  EXPECT_NE(built.output.find("-std=c++20"), std::string::npos) << built.output;
  EXPECT_NE(built.output.find("-fvisibility=hidden"), std::string::npos) << built.output;
  EXPECT_EQ(exported(folder / "packer-cpp/build/packer-cpp/packer-cpp.so"),
            std::set<std::string>{"fvlm_plugin_entry_v1"});
}

TEST_F(PackageTest, FindPackageReportsWhatIsMissing) {
  write("young/CMakeLists.txt", "cmake_minimum_required(VERSION 3.24)\nproject(young LANGUAGES C)\n"
                                "find_package(fvlm-sdk 2.0 REQUIRED)\n");
  const Result young = configure("young");
  EXPECT_NE(young.status, 0);
  EXPECT_NE(young.output.find("version: 1.0"), std::string::npos) << young.output;

  write("bare/plugin.c", "");
  write("bare/CMakeLists.txt", "cmake_minimum_required(VERSION 3.24)\nproject(bare LANGUAGES C)\n"
                               "find_package(fvlm-sdk REQUIRED)\nfvlm_add_plugin(bare SOURCES plugin.c)\n");
  const Result bare = configure("bare");
  EXPECT_NE(bare.status, 0);
  // CMake breaks lines where the folder's name lets it.
  std::string flat;
  for (const char c : bare.output)
    if (const bool blank = c == ' ' || c == '\n'; !blank || !flat.ends_with(' ')) flat += blank ? ' ' : c;
  EXPECT_NE(flat.find("missing; the engine reads it before the library"), std::string::npos) << bare.output;
}

TEST_F(PackageTest, PkgConfigBuildsAPluginInOneCommand) {
  if (!has_tool("pkg-config")) GTEST_SKIP() << "pkg-config is not installed";
  copy_template("attention", "c", "attention-c");
  const std::string search = "export PKG_CONFIG_PATH='" + (prefix / "lib/pkgconfig").string() + "'; ";
  EXPECT_EQ(run(search + "pkg-config --modversion fvlm-sdk").output, "1.0\n");
  const Result built = run(search + "cc -shared -fPIC plugin.c -o attention-c.so $(pkg-config --cflags fvlm-sdk) -lm",
                           folder / "attention-c");
  ASSERT_EQ(built.status, 0) << built.output;
  EXPECT_EQ(exported(folder / "attention-c/attention-c.so"), std::set<std::string>{"fvlm_plugin_entry_v1"});
  const Result exports = run(search + "cat $(pkg-config --variable=exports fvlm-sdk)");
  EXPECT_NE(exports.output.find("global: fvlm_plugin_entry_v1;"), std::string::npos) << exports.output;
}

} // namespace
