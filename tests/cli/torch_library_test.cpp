// Where an installed program searches for LibTorch, and that it runs no untrusted code meanwhile.
#include "program.h"

#include <gmock/gmock.h>
#include <sys/stat.h>
#include <unistd.h>

using namespace fvlm;
using testing::AllOf;
using testing::HasSubstr;
using testing::Not;
namespace fs = std::filesystem;

namespace {

struct TorchLibrary : testing::Test {
  TorchLibrary() {
    fs::create_directories(scratch / "bin");
    fs::copy_file(FVLM_ENGINE, scratch / "bin/fvlm-engine"); // no lib/fvlm/torch-folder beside it
    fs::create_directories(scratch / "work");
    fs::create_directories(scratch / "home");
  }

  // In the folder `work`.
  test::Ran doctor(const std::string& environment) const {
    return test::shell(
        fmt::format("cd '{0}/work' && env -u FVLM_TORCH -u FVLM_CACHE -u XDG_CACHE_HOME HOME='{0}/home' {1} "
                    "'{0}/bin/fvlm-engine' doctor --json",
                    scratch.path().string(), environment));
  }
  static std::string text(const test::Ran& ran) {
    const auto document = nlohmann::json::parse(ran.out, nullptr, false);
    return document.is_object() ? document["LibTorch"]["text"].get<std::string>() : ran.out + ran.err;
  }
  static std::string advice(const test::Ran& ran) { return nlohmann::json::parse(ran.out)["LibTorch"]["advice"]; }

  // A folder that looks like torch's.
  fs::path write_torch(const fs::path& folder, const std::string& version = "2.11.0") const {
    fs::create_directories(folder / "lib");
    write_file_atomic(folder / "version.py", "\n__version__ = '" + version + "'\n");
    write_file_atomic(folder / "lib/libtorch_cpu.so", "nobody loads it");
    return folder;
  }

  ScratchFolder scratch;
};

TEST_F(TorchLibrary, NothingOfTheWorkingFolderIsRunOrTaken) {
  const fs::path marker = scratch / "ran";
  const std::string code = fmt::format("open('{}', 'w').close()\n", marker.string());
  for (const char* module : {"warnings.py", "types.py", "site.py", "sitecustomize.py", "usercustomize.py", "torch.py"})
    write_file_atomic(scratch / "work" / module, code);
  write_torch(scratch / "work/torch");
  write_file_atomic(scratch / "work/torch/__init__.py", code);
  write_file_atomic(scratch / "work/python3", "#!/bin/sh\ntouch '" + marker.string() + "'\n");
  fs::permissions(scratch / "work/python3", fs::perms::owner_all);
  for (const char* environment : {"", "PYTHONPATH=.", "PATH=.:$PATH", "PATH=:$PATH", "HOME="}) {
    const auto ran = doctor(environment);
    EXPECT_THAT(text(ran), Not(HasSubstr((scratch / "work").string()))) << environment;
    EXPECT_FALSE(fs::exists(marker)) << environment;
  }
}

TEST_F(TorchLibrary, AFolderThatOthersCanWriteToIsRefusedByName) {
  const fs::path folder =
      write_torch(scratch / "home/.cache/fvlm-engine/torch-2.11.0/lib/python3.11/site-packages/torch");
  EXPECT_THAT(text(doctor("")), AllOf(HasSubstr("2.11.0 in " + folder.string()), HasSubstr("found by the cache")));
  for (const fs::path& open : {folder / "lib", folder.parent_path(), folder / "lib/libtorch_cpu.so"}) {
    const auto mode = fs::status(open).permissions();
    fs::permissions(open, mode | fs::perms::others_write);
    const auto ran = doctor("");
    EXPECT_THAT(text(ran) + advice(ran), AllOf(HasSubstr("the cache: " + open.string()), HasSubstr("world-writable")));
    fs::permissions(open, mode);
  }
  if (geteuid() != 0) GTEST_SKIP() << "the rest needs the right to give files away";
  ASSERT_EQ(chown((folder / "lib").c_str(), 12345, 12345), 0);
  EXPECT_THAT(text(doctor("")) + advice(doctor("")),
              HasSubstr((folder / "lib").string() + ": a folder owned by user 12345"));
}

// An installed program is three folders below one that may be everybody's, where a source tree has tools/oracle.
TEST_F(TorchLibrary, APeerThatOthersCanWriteToIsNotRun) {
  const fs::path marker = scratch / "ran", build = fs::path(FVLM_ENGINE).parent_path().parent_path();
  fs::create_directories(scratch / "a/installed/bin");
  fs::copy_file(FVLM_ENGINE, scratch / "a/installed/bin/fvlm-engine");
  fs::create_directory_symlink(build / "lib", scratch / "a/installed/lib");
  fs::create_directories(scratch / "tools/oracle");
  write_file_atomic(scratch / "tools/oracle/time-op", fmt::format("open('{}', 'w').close()\n", marker.string()));
  fs::permissions(scratch / "tools/oracle", fs::perms::others_write, fs::perm_options::add);
  const auto ran = test::shell(fmt::format("'{}/a/installed/bin/fvlm-engine' bench op --device cpu --precision fp32 "
                                           "--configurations 135m:1 --operations swiglu --peer eager",
                                           scratch.path().string()));
  EXPECT_EQ(ran.code, 5) << ran.err;
  EXPECT_THAT(ran.err, HasSubstr((scratch / "tools/oracle").string() + ": a world-writable folder"));
  EXPECT_FALSE(fs::exists(marker));
}

TEST_F(TorchLibrary, WithoutOneDoctorExitsWith6) {
  const auto ran = doctor("FVLM_TORCH=/nowhere");
  EXPECT_EQ(ran.code, 6);
  EXPECT_THAT(text(ran), HasSubstr("FVLM_TORCH: no lib/libtorch_cpu.so in /nowhere"));
  write_torch(scratch / "torch");
  EXPECT_EQ(doctor("FVLM_TORCH='" + (scratch / "torch").string() + "'").code, 0);
  EXPECT_THAT(text(doctor("FVLM_TORCH='" + (scratch / "torch").string() + "'")), HasSubstr("found by FVLM_TORCH"));
}

} // namespace
