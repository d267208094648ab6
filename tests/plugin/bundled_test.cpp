// Bundled plugins, other plugins in their folder, and plugins with the name of a bundled one.
#include "base/hash.h"
#include "engine_workshop.h"
#include "plugin/selection.h"

#include <nlohmann/json.hpp>

#include <gmock/gmock.h>

namespace fvlm::test {
namespace {

using testing::AllOf;
using testing::HasSubstr;

class Bundled : public EngineWorkshop {
 protected:
  // Options that search only the program's folder. `built`: the library whose hash is recorded for 'sample', "" for
  // none.
  RegistryOptions bundled(const std::string& built) const {
    RegistryOptions settings = options();
    settings.directories.clear();
    settings.bundled = root() / "bundled";
    if (!built.empty()) settings.load.bundled = {{"sample", sha256_file(library(built))}};
    return settings;
  }
  static std::string refusal(RegistryOptions settings) {
    std::string why = "loaded";
    Registry(std::move(settings)).load("sample", &why);
    return why;
  }
};

TEST_F(Bundled, FolderTriesOutWhatTheBuildDidNotNote) {
  lay("sample", "entry_crashes", {}, "bundled");
  EXPECT_THAT(refusal(bundled("")), HasSubstr("it crashed with SIGSEGV in fvlm_plugin_entry_v1()"));
  EXPECT_THAT(refusal(bundled("sample")), HasSubstr("it crashed with SIGSEGV")) << "another hash";
}

TEST_F(Bundled, FolderLocksOutWhatTheBuildDidNotNote) {
  lay("sample", "sample", {}, "bundled");
  for (const char* noted : {"", "other"}) {
    RegistryOptions settings = bundled(noted);
    Registry registry(settings);
    EXPECT_EQ(registry.load("sample")->origin, Origin::installed);
    settings.load.lock = PluginLock();
    EXPECT_THAT(refusal(settings), HasSubstr("'sample' is not in the lock file"));
    settings.load.lock.reset();
    settings.bundled_only = true;
    EXPECT_THAT(refusal(settings), HasSubstr("not one of the program's bundled plugins"));
  }
  RegistryOptions settings = bundled("sample");
  settings.load.lock = PluginLock();
  settings.bundled_only = true;
  EXPECT_EQ(refusal(settings), "loaded");
}

TEST_F(Bundled, PluginStaysWhereOneOfItsNameIsBroken) {
  lay("sample", "sample", {}, "bundled");
  ManifestText unknown_key, other_kind;
  unknown_key.more = "licence = \"MIT\"\n";
  other_kind.kinds = R"(["fvlm.packer/1"])";
  const struct {
    std::string built, reason;
    ManifestText manifest;
  } cases[] = {{"entry_crashes", "it crashed with SIGSEGV", {}},
               {"other_version", "the library's version is '0.9'", {}},
               {"sample", "unknown key 'licence'", unknown_key},
               {"sample", "its manifest lists fvlm.packer/1, but the library has no table of it", other_kind}};
  for (const auto& [built, reason, manifest] : cases) {
    SCOPED_TRACE(reason);
    const fs::path broken = lay("broken", built, manifest);
    RegistryOptions settings = bundled("sample");
    settings.directories = {plugins()};
    Registry registry(settings);
    testing::internal::CaptureStderr();
    const auto usable = registry.candidates<fvlm_attention_v1>();
    const std::string output = testing::internal::GetCapturedStderr();
    ASSERT_EQ(usable.size(), 1U);
    EXPECT_EQ(usable[0].plugin->origin, Origin::bundled);
    EXPECT_THAT(output, AllOf(HasSubstr("the plugin 'sample' in " + broken.string() +
                                        " is ignored in favour of the bundled one"),
                              HasSubstr(reason)));
    ASSERT_EQ(registry.refusals().size(), 1U);
    EXPECT_EQ(registry.refusals()[0].where, broken);
  }
}

TEST_F(Bundled, PluginGivesWayToASoundOneOfItsName) {
  lay("sample", "sample", {}, "bundled");
  lay("mine", "newer_minor");
  RegistryOptions settings = bundled("sample");
  settings.directories = {plugins()};
  Registry registry(settings);
  const auto usable = registry.candidates<fvlm_attention_v1>();
  ASSERT_EQ(usable.size(), 1U);
  EXPECT_EQ(usable[0].plugin->library, plugins() / "mine" / "plugin.so");
}

TEST_F(Bundled, NotesAreReadFromFilesThatOnlyTheOwnerWrites) {
  const fs::path notes = folder("notes");
  write(notes / "mine.sha256", std::string(64, 'a') + "\n");
  fs::permissions(write(notes / "anybodys.sha256", std::string(64, 'b') + "\n"), fs::perms(0666));
  testing::internal::CaptureStderr();
  const auto hashes = read_bundled_hashes(notes, TrustPolicy());
  EXPECT_EQ(hashes, (BundledHashes{{"mine", std::string(64, 'a')}}));
  EXPECT_THAT(testing::internal::GetCapturedStderr(), HasSubstr("anybodys.sha256: a world-writable file"));
}

TEST_F(Bundled, PluginsOfTheBuildTreeAreNoted) {
  const auto list = nlohmann::json::parse(engine("plugin list --json --bundled-only").out);
  bool found = false;
  for (const auto& plugin : list.at("plugins"))
    if (plugin.at("name") == "packer-bestfit") {
      found = true;
      EXPECT_EQ(plugin.at("from"), "bundled");
      EXPECT_EQ(plugin.at("state"), "ready");
    }
  EXPECT_TRUE(found);
}

// Installation strips libraries, as in scripts/package: the recorded hash has to be that of the stripped one.
TEST_F(Bundled, PluginsOfAnInstalledTreeAreNoted) {
  const fs::path script = fs::path(FVLM_TEST_BUILD) / "plugins" / "packer-bestfit" / "cmake_install.cmake";
  const Ran installed = shell(fmt::format("'{}' -DCMAKE_INSTALL_PREFIX='{}' -DCMAKE_INSTALL_DO_STRIP=1 -P '{}'",
                                          FVLM_TEST_CMAKE, (root() / "installed").string(), script.string()));
  ASSERT_EQ(installed.code, 0) << installed.out << installed.err;
  const fs::path own = root() / "installed" / "lib" / "fvlm";
  const auto hashes = read_bundled_hashes(own / "bundled", TrustPolicy());
  EXPECT_EQ(hashes.at("packer-bestfit"), sha256_file(own / "plugins" / "packer-bestfit" / "packer-bestfit.so"));
}

} // namespace
} // namespace fvlm::test
