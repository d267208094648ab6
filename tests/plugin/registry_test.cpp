#include "base/error.h"
#include "base/hash.h"
#include "plugin/adopt.h"
#include "workshop.h"

#include <cstdlib>
#include <gmock/gmock.h>
#include <thread>

namespace fvlm::test {
namespace {

using testing::HasSubstr;
using testing::StartsWith;

class RegistryTest : public Workshop {
 protected:
  static std::vector<std::string> names(const Registry& registry) {
    std::vector<std::string> all;
    for (const auto& plugin : registry.found()) all.push_back(plugin.manifest.name);
    return all;
  }
  ManifestText named(const std::string& name) {
    ManifestText text;
    text.name = name;
    return text;
  }
  size_t verdicts() const {
    size_t count = 0;
    std::error_code ignored;
    for (const auto& file : fs::directory_iterator(root() / "memory", ignored)) count += file.is_regular_file();
    return count;
  }
};

TEST_F(RegistryTest, LoadsAPluginAndItsDescription) {
  fs::path home = lay("sample", "sample");
  Registry registry(options());
  const LoadedPlugin* plugin = registry.load("sample");
  ASSERT_TRUE(plugin);
  EXPECT_EQ(plugin->origin, Origin::directory);
  EXPECT_EQ(plugin->library, home / "plugin.so");
  EXPECT_EQ(plugin->sha256.size(), 64u);
  EXPECT_EQ(plugin->host, host_for("sample"));
  EXPECT_TRUE(plugin->table<fvlm_attention_v1>()->forward);
  EXPECT_FALSE(plugin->table<fvlm_loss_v1>());
  EXPECT_EQ(registry.load("sample"), plugin);
  EXPECT_TRUE(registry.refusals().empty());
}

TEST_F(RegistryTest, OpensNothingBeforeItIsRequested) {
  lay("sample", "constructor_crashes");
  auto settings = options();
  settings.load.probe.when = ProbeOptions::When::never;
  Registry registry(settings);
  EXPECT_THAT(names(registry), testing::ElementsAre("sample"));
  EXPECT_TRUE(registry.candidates<fvlm_loss_v1>().empty()) << "and not for a kind that its manifest does not list";
}

TEST_F(RegistryTest, FirstPluginOfANameWins) {
  folder("second");
  lay("sample", "sample");
  lay("sample", "sample", {}, "second");
  auto settings = options();
  settings.directories.push_back(root() / "second");
  Registry registry(settings);
  EXPECT_EQ(registry.load("sample")->library, plugins() / "sample" / "plugin.so");
  ASSERT_EQ(registry.refusals().size(), 1u);
  EXPECT_EQ(registry.refusals()[0].where, root() / "second" / "sample");
  EXPECT_THAT(registry.refusals()[0].reason, HasSubstr("already found in " + (plugins() / "sample").string()));
}

TEST_F(RegistryTest, FindsAFolderOnceHoweverOftenItIsNamed) {
  lay("sample", "sample");
  fs::create_directory_symlink(plugins(), root() / "link");
  auto settings = options();
  settings.directories = {plugins(), root() / "link", plugins() / "sample"};
  Registry registry(settings);
  EXPECT_THAT(names(registry), testing::ElementsAre("sample"));
  EXPECT_TRUE(registry.refusals().empty());
}

TEST_F(RegistryTest, SearchesDirectoriesThenThePathThenTheBundled) {
  lay("a", "sample", named("sample"), "bundled");
  lay("b", "other", named("other"), "path");
  lay("c", "kernels", named("c"));
  auto settings = options();
  settings.path = (root() / "path").string();
  settings.bundled = root() / "bundled";
  Registry registry(settings);
  EXPECT_THAT(names(registry), testing::ElementsAre("c", "other", "sample"));
  settings.bundled_only = true;
  EXPECT_THAT(names(Registry(settings)), testing::ElementsAre("sample"));
}

TEST_F(RegistryTest, RefusesEmptyAndRelativeEntriesOfThePath) {
  lay("sample", "sample");
  fs::path before = fs::current_path();
  fs::current_path(plugins());
  auto settings = options();
  settings.directories.clear();
  settings.path = ":.:plugins:" + (root() / "nowhere").string();
  Registry registry(settings);
  fs::current_path(before);
  EXPECT_TRUE(names(registry).empty()) << "the working directory was searched";
  std::vector<std::string> reasons;
  for (const auto& refusal : registry.refusals()) reasons.push_back(refusal.reason);
  EXPECT_THAT(reasons, testing::ElementsAre(HasSubstr("an empty entry"), HasSubstr("a relative entry"),
                                            HasSubstr("a relative entry"), HasSubstr("cannot be read: No such file")));
}

TEST_F(RegistryTest, TakesTheFolderOfASinglePlugin) {
  fs::path home = lay("sample", "sample");
  auto settings = options();
  settings.directories = {home};
  EXPECT_THAT(names(Registry(settings)), testing::ElementsAre("sample"));
}

TEST_F(RegistryTest, ReportsADirectoryWithoutPlugins) {
  Registry registry(options());
  ASSERT_EQ(registry.refusals().size(), 1u);
  EXPECT_THAT(registry.refusals()[0].reason, HasSubstr("no plugin in this folder"));
}

TEST_F(RegistryTest, EscapesControlCharactersOfFolderNames) {
  fs::path home = lay("evil\x1b[2J", "sample");
  fs::remove(home / "plugin.toml");
  Registry registry(options());
  ASSERT_EQ(registry.refusals().size(), 1u);
  EXPECT_EQ(registry.refusals()[0].name, "evil [2J");
}

TEST_F(RegistryTest, DoesNotProbeBundledPlugins) {
  lay("sample", "sample", {}, "bundled");
  auto settings = options();
  settings.directories.clear();
  settings.bundled = root() / "bundled";
  settings.load.bundled = {{"sample", sha256_file(library("sample"))}};
  settings.load.probe.program = "/no/such/program";
  Registry registry(settings);
  EXPECT_TRUE(registry.load("sample"));
}

TEST_F(RegistryTest, ReportsAMissingProbeProgram) {
  lay("sample", "sample");
  auto settings = options();
  settings.load.probe.program = root() / "no-such-program";
  Registry registry(settings);
  std::string reason;
  EXPECT_FALSE(registry.load("sample", &reason));
  EXPECT_THAT(reason, HasSubstr("no-such-program: the program for trial loads of plugins is missing"));
}

// The reason that `train` reports, which loads by name; the folder has another name.
TEST_F(RegistryTest, DescribesAnAbsentPlugin) {
  ManifestText text;
  text.more = "licence = \"MIT\"\n";
  lay("somewhere", "sample", text);
  auto settings = options();
  settings.directories.push_back(root() / "nowhere");
  Registry registry(settings);
  std::string reason;
  registry.load("sample", &reason);
  EXPECT_THAT(reason, HasSubstr("unknown key 'licence'"));
  registry.load("another", &reason);
  EXPECT_THAT(reason, testing::AllOf(StartsWith("no plugin of this name was found; "),
                                     HasSubstr("nowhere: the folder cannot be read: No such file")));
  EXPECT_EQ(registry.refusals()[0].name, "sample");
}

// The second load uses the cached result: the probing program, which now refuses everything, is not started.
TEST_F(RegistryTest, CachesAVerdictUntilTheLibraryChanges) {
  fs::path home = lay("sample", "sample");
  ASSERT_TRUE(Registry(options()).load("sample"));
  ASSERT_EQ(verdicts(), 1u);
  auto file = fs::directory_iterator(root() / "memory")->path();
  auto when = fs::last_write_time(file);
  ASSERT_TRUE(Registry(options()).load("sample"));
  EXPECT_EQ(fs::last_write_time(file), when) << "it was tried out again";

  auto settings = options();
  settings.load.probe.when = ProbeOptions::When::always;
  ASSERT_TRUE(Registry(settings).load("sample"));
  EXPECT_NE(fs::last_write_time(file), when);
}

TEST_F(RegistryTest, CachesCrashesAndRetriesOnRequestOnly) {
  lay("sample", "entry_crashes");
  std::string first, second, third;
  Registry(options()).load("sample", &first);
  Registry(options()).load("sample", &second);
  EXPECT_THAT(first, HasSubstr("it crashed with SIGSEGV in fvlm_plugin_entry_v1()"));
  EXPECT_THAT(second, HasSubstr("it crashed with SIGSEGV in fvlm_plugin_entry_v1()"));
  EXPECT_THAT(second, HasSubstr("cached result of an earlier trial load"));
  auto settings = options();
  settings.load.probe.when = ProbeOptions::When::failed;
  Registry(settings).load("sample", &third);
  EXPECT_EQ(third, first);
}

TEST_F(RegistryTest, IgnoresAnInvalidCache) {
  lay("sample", "sample");
  ASSERT_TRUE(Registry(options()).load("sample"));
  for (const auto& file : fs::directory_iterator(root() / "memory")) write(file.path(), "{\"library\": 3}");
  EXPECT_TRUE(Registry(options()).load("sample"));
  fs::remove_all(root() / "memory");
  write(root() / "memory", "a file where the folder should be");
  EXPECT_TRUE(Registry(options()).load("sample"));
}

TEST_F(RegistryTest, RefusesALibraryReplacedAfterLoading) {
  fs::path home = lay("sample", "sample");
  ASSERT_TRUE(Registry(options()).load("sample"));
  fs::copy_file(library("newer_minor"), home / "new.so");
  fs::rename(home / "new.so", home / "plugin.so");
  std::string reason;
  EXPECT_FALSE(Registry(options()).load("sample", &reason));
  EXPECT_THAT(reason, HasSubstr("another library of this name is already loaded"));
}

TEST_F(RegistryTest, LoadsOneByLibraryManifestOrFolder) {
  fs::path home = lay("sample", "sample");
  auto settings = options();
  settings.directories.clear();
  Registry registry(settings);
  for (const fs::path& path : {home, home / "", home / "plugin.so", home / "plugin.toml"})
    EXPECT_EQ(registry.load_file(path).library, home / "plugin.so") << path;
  EXPECT_TRUE(registry.found().empty());
  fs::copy_file(home / "plugin.so", home / "unnamed.so");
  EXPECT_THROW(registry.load_file(home / "unnamed.so"), Error);
  EXPECT_THROW(registry.load_file(root()), Error);
  EXPECT_THROW(registry.load_file(root() / "nothing.so"), Error);
  settings.bundled_only = true;
  EXPECT_THROW(Registry(settings).load_file(home), Error);
}

TEST_F(RegistryTest, ReservesTheEnginesOwnName) {
  lay("reference", "sample", named("reference"));
  Registry registry(options());
  int requested = 0;
  registry.add_static(builtin_manifest("reference", "1", "own", {"fvlm.attention/1"}, {"cpu"}),
                      [&]() -> fvlm_plugin_entry_function {
                        ++requested;
                        return [](const fvlm_host*) -> const fvlm_plugin* { return nullptr; };
                      });
  EXPECT_EQ(requested, 0);
  ASSERT_EQ(registry.refusals().size(), 1u);
  EXPECT_EQ(registry.refusals()[0].reason, "this name is reserved for a built-in plugin");
  std::string reason;
  EXPECT_FALSE(registry.load("reference", &reason));
  EXPECT_EQ(requested, 1);
  EXPECT_THAT(reason, HasSubstr("returned NULL")) << "its own are held to the same rules";
}

TEST_F(RegistryTest, ReportsArchitecturesOfALibrary) {
  ManifestText text;
  text.devices = R"(["cuda"])";
  text.more = "architectures = [\"sm_90a\", \"sm_80\", \"sm_100f\"]\n";
  lay("sample", "sample", text);
  auto load = [&](std::pair<int, int> capability) {
    auto settings = options();
    settings.devices = DevicesHere{true, "", {capability}};
    std::string reason = "loaded";
    Registry(settings).load("sample", &reason);
    return reason;
  };
  EXPECT_EQ(load({9, 0}), "loaded");
  EXPECT_EQ(load({8, 6}), "loaded");
  EXPECT_EQ(load({10, 3}), "loaded");
  EXPECT_THAT(load({7, 5}), StartsWith("built for sm_90a, sm_80, sm_100f; this machine has sm_75 ("));
  EXPECT_THAT(load({12, 0}), StartsWith("built for sm_90a, sm_80, sm_100f; this machine has sm_120 ("));
}

TEST_F(RegistryTest, UsesTheSmallerMinorVersion) {
  lay("sample", "newer_minor");
  Registry registry(options());
  const LoadedPlugin* plugin = registry.load("sample");
  ASSERT_TRUE(plugin);
  EXPECT_EQ(plugin->abi_minor, uint32_t{FVLM_ABI_MINOR});
  EXPECT_EQ(plugin->tables[0].declared_size, 1000u) << "larger than the engine knows, and cut to what it knows";
}

// An engine with a newer ABI minor, whose table has grown: functions that an older plugin lacks are NULL.
TEST(RegistryTables, OfAnOlderMinorAreExtendedWithNull) {
  struct Grown {
    uint32_t struct_size;
    void (*first)();
    void (*added)();
  };
  struct Old {
    uint32_t struct_size;
    void (*first)();
  };
  struct {
    Old old;
    char behind[64];
  } given = {{sizeof(Old), [] {}}, {}};
  std::fill(std::begin(given.behind), std::end(given.behind), 'x');
  Family family{"test.grown/1",
                "grown",
                false,
                sizeof(Old),
                sizeof(Grown),
                {{"first", offsetof(Grown, first)}},
                {},
                [](const void*, const KindName&, fvlm_device) { return std::string(); }};
  auto adopted = adopt_table(&given, {"test.grown/1", ""}, family, 0, {FVLM_CPU, 0}, "here");
  EXPECT_TRUE(static_cast<const Grown*>(adopted.table)->first);
  EXPECT_FALSE(static_cast<const Grown*>(adopted.table)->added);
  EXPECT_EQ(adopted.declared_size, sizeof(Old));
}

TEST_F(RegistryTest, ServesSeveralThreads) {
  lay("sample", "sample");
  lay("other", "other", named("other"));
  Registry registry(options());
  std::vector<std::thread> threads;
  threads.reserve(4);
  std::atomic<int> wrong{0};
  for (int t = 0; t < 4; ++t)
    threads.emplace_back([&] {
      for (int i = 0; i < 50; ++i)
        if (registry.candidates<fvlm_attention_v1>().size() != 2 || registry.load("sample") != registry.load("sample"))
          ++wrong;
    });
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
}

// As the tutorial promises: one command, without the engine's build system.
class OutsideTheTree : public RegistryTest {
 protected:
  void build_and_load(const std::string& compiler) {
    fs::path home = folder("plugins/sample");
    fs::copy_file(FVLM_TEST_SOURCE, root() / "my.c");
    std::string command = fmt::format("{} -shared -fPIC -I{} -o {} {}", compiler, FVLM_TEST_SDK,
                                      (home / "plugin.so").string(), (root() / "my.c").string());
    ASSERT_EQ(std::system(command.c_str()), 0) << command;
    fs::permissions(home / "plugin.so", fs::perms(0755));
    write(home / "plugin.toml", ManifestText().text());
    Registry registry(options());
    std::string reason;
    EXPECT_TRUE(registry.load("sample", &reason)) << reason;
  }
};
TEST_F(OutsideTheTree, CPluginBuiltWithCcIsLoaded) {
  build_and_load("cc");
}
TEST_F(OutsideTheTree, PluginBuiltByClangWithAnotherStandardIsLoaded) {
  if (std::system("clang++ --version > /dev/null 2>&1") != 0) GTEST_SKIP() << "no clang++ on this machine";
  build_and_load("clang++ -x c++ -std=c++17");
}

} // namespace
} // namespace fvlm::test
