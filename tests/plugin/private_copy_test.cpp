// With a lock file, the content that was hashed is the one that is loaded, even if the file is replaced meanwhile.
#include "base/file.h"
#include "base/hash.h"
#include "workshop.h"

#include <gmock/gmock.h>

namespace fvlm::test {
namespace {

class PrivateCopy : public Workshop {
 protected:
  PrivateCopy() { setenv("FVLM_TEST_MARK", mark().c_str(), 1); }
  ~PrivateCopy() override { unsetenv("FVLM_TEST_MARK"); }
  fs::path mark() const { return root() / "mark"; } // made by the constructor of another library

  // `first` runs after the library was hashed and before the trial load.
  RegistryOptions options_with(const std::string& first, const fs::path& home) {
    const fs::path probe =
        write(root() / "probe.sh", fmt::format("#!/bin/sh\n{}\nexec '{}' \"$@\"\n", first, FVLM_TEST_PROBE));
    fs::permissions(probe, fs::perms(0755));
    RegistryOptions settings = options();
    settings.load.probe.program = probe;
    settings.load.lock = PluginLock();
    settings.load.lock->trust("sample", {sha256_file(home / "plugin.so"), ""});
    return settings;
  }
};

TEST_F(PrivateCopy, IsTriedAndOpenedInPlaceOfAnOverwrittenFile) {
  const std::string other = library("constructor_marks");
  for (const char* command : {"cat '{0}' > '{1}'", "cp '{0}' '{1}.new'; mv '{1}.new' '{1}'", "rm '{1}'"}) {
    SCOPED_TRACE(command);
    const fs::path home = lay(std::to_string(std::string_view(command).size()), "sample"); // never opened before
    auto settings = options_with(fmt::format(fmt::runtime(command), other, (home / "plugin.so").string()), home);
    settings.directories = {home};
    Registry registry(settings);
    std::string reason;
    const LoadedPlugin* plugin = registry.load("sample", &reason);
    ASSERT_TRUE(plugin) << reason;
    EXPECT_EQ(plugin->library, home / "plugin.so");
    EXPECT_EQ(plugin->sha256, sha256_file(library("sample")));
    EXPECT_TRUE(plugin->table<fvlm_attention_v1>()->forward);
    EXPECT_FALSE(fs::exists(mark())) << "the other library ran";
    fs::remove_all(root() / "memory");
  }
}

TEST_F(PrivateCopy, FindsWhatLiesBesideTheLibrary) {
  const fs::path home = lay("sample", "dependency_beside");
  fs::copy_file(library("dependency"), home / "dependency.so");
  std::string reason;
  EXPECT_TRUE(Registry(options_with("", home)).load("sample", &reason)) << reason;
}

TEST_F(PrivateCopy, IsTriedOutOnce) {
  const fs::path home = lay("sample", "sample"), runs = root() / "runs";
  const auto settings = options_with("echo run >> '" + runs.string() + "'", home);
  EXPECT_TRUE(Registry(settings).load("sample"));
  EXPECT_TRUE(Registry(settings).load("sample"));
  EXPECT_EQ(read_file(runs), "run\n");
}

} // namespace
} // namespace fvlm::test
