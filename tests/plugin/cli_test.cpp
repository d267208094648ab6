// The verbs `plugin list`, `info` and `trust`, as a user runs them.
#include "base/hash.h"
#include "engine_workshop.h"

#include <nlohmann/json.hpp>

#include <cstdio>
#include <gmock/gmock.h>

namespace fvlm::test {
namespace {

using nlohmann::json;
using testing::AllOf;
using testing::HasSubstr;

class PluginVerb : public EngineWorkshop {
 protected:
  json listed(const std::string& arguments) {
    Ran run = engine("plugin list --json " + arguments);
    EXPECT_EQ(run.code, 0) << run.err;
    return json::parse(run.out);
  }
  static json named(const json& list, const std::string& name) {
    for (const auto& plugin : list.at("plugins"))
      if (plugin.at("name") == name) return plugin;
    return nullptr;
  }
};

ManifestText called(const std::string& name) {
  ManifestText text;
  text.name = name;
  return text;
}

TEST_F(PluginVerb, ListShowsFoundAndRefusedPlugins) {
  lay("sample", "sample");
  lay("broken", "entry_crashes", called("broken"));
  Ran run = engine("plugin list " + directory());
  EXPECT_EQ(run.code, 0) << run.err;
  EXPECT_THAT(run.out, AllOf(HasSubstr("sample"), HasSubstr("attention"), HasSubstr("--plugin-dir"), HasSubstr("ready"),
                             HasSubstr("reference"), HasSubstr("built in"), HasSubstr("Refused\n  broken: "),
                             HasSubstr("it crashed with SIGSEGV in fvlm_plugin_entry_v1()")));
}

TEST_F(PluginVerb, ListAsJsonIsOneDocument) {
  fs::path home = lay("other", "other", called("other"));
  lay("sample", "table_size_zero");
  json list = listed(directory());
  EXPECT_EQ(named(list, "other").at("state"), "ready");
  EXPECT_EQ(named(list, "other").at("library"), (home / "plugin.so").string());
  EXPECT_EQ(named(list, "other").at("kinds"), json::array({"fvlm.attention/1"}));
  EXPECT_EQ(named(list, "reference").at("state"), "built in");
  EXPECT_EQ(named(list, "sample").at("state"), "refused");
  EXPECT_EQ(
      named(list, "sample").at("reason"),
      "plugin.so: the table of fvlm.attention/1 has struct_size 0 (set it to sizeof the struct of the SDK's headers)");
  auto is_broken = [](const json& refusal) { return refusal.at("name") == "sample"; };
  EXPECT_EQ(std::count_if(list.at("refused").begin(), list.at("refused").end(), is_broken), 1);
}

TEST_F(PluginVerb, ListShowsBackendsOfSmallOperations) {
  ManifestText text;
  text.kinds = "[\"fvlm.kernels/1\"]";
  lay("sample", "kernels", text);
  EXPECT_THAT(engine("plugin list " + directory()).out,
              AllOf(HasSubstr("Fused kernel backends available: "), HasSubstr("sample (rmsnorm)")));
  EXPECT_EQ(listed(directory()).at("fused_kernel_backends").at("sample"), json::array({"rmsnorm"}));
}

TEST_F(PluginVerb, ListSearchesThePathButNotTheWorkingDirectory) {
  lay("sample", "sample", {}, "."); // the engine is started here
  EXPECT_TRUE(named(listed(""), "sample").is_null());
  EXPECT_FALSE(named(listed("--plugin-dir ."), "sample").is_null()) << "unless it is named";
  Ran run = engine("plugin list", "FVLM_PLUGIN_PATH=.:");
  EXPECT_THAT(run.out, AllOf(HasSubstr("a relative entry of FVLM_PLUGIN_PATH"),
                             HasSubstr("an empty entry of FVLM_PLUGIN_PATH")));
  Ran whole = engine("plugin list", "FVLM_PLUGIN_PATH='" + root().string() + "'");
  EXPECT_THAT(whole.out, AllOf(HasSubstr("sample"), HasSubstr("FVLM_PLUGIN_PATH"), HasSubstr("ready")));
}

TEST_F(PluginVerb, ListOfBundledPluginsHasNoOthers) {
  lay("sample", "sample");
  json list = listed(directory() + " --bundled-only");
  EXPECT_TRUE(named(list, "sample").is_null());
  for (const auto& plugin : list.at("plugins")) EXPECT_THAT(plugin.at("from"), testing::AnyOf("bundled", "built in"));
}

TEST_F(PluginVerb, InfoShowsPathHashAndTables) {
  fs::path home = lay("sample", "kernels", [] {
    ManifestText text;
    text.kinds = R"(["fvlm.kernels/1", "fvlm.future/3"])";
    return text;
  }());
  Ran run = engine("plugin info sample " + directory());
  EXPECT_EQ(run.code, 0) << run.err;
  EXPECT_THAT(run.out,
              AllOf(HasSubstr((home / "plugin.so").string()), HasSubstr(sha256_file(home / "plugin.so")),
                    HasSubstr("fvlm.kernels/1\n  operations  rmsnorm"), HasSubstr("fvlm.future/3"), HasSubstr("MIT")));
  EXPECT_EQ(engine("plugin info '" + home.string() + "'").out,
            engine("plugin info '" + (home / "plugin.so").string() + "'").out)
      << "by its path it is found as well";
}

TEST_F(PluginVerb, InfoOfAnOptimizerListsItsHyperparameters) {
  ManifestText text;
  text.kinds = R"(["fvlm.optimizer/1:sgd"])";
  lay("sample", "optimizer", text);
  EXPECT_THAT(engine("plugin info sample " + directory()).out,
              AllOf(HasSubstr("lr        default 0.1, from 0 to 10"), HasSubstr("momentum  default 0.9, from 0 to 1")));
  json info = json::parse(engine("plugin info sample --json " + directory()).out);
  EXPECT_EQ(info.at("tables").at("fvlm.optimizer/1:sgd").at("hyperparameters")[1].at("most"), 1);
}

TEST_F(PluginVerb, InfoOfRefusedOrMissingPluginsExitsWith5) {
  lay("sample", "other_version");
  Ran refused = engine("plugin info sample " + directory());
  EXPECT_EQ(refused.code, 5);
  EXPECT_THAT(refused.err, HasSubstr("the library's version is '0.9', but its manifest says '1.0'"));
  Ran absent = engine("plugin info sampel " + directory());
  EXPECT_EQ(absent.code, 5);
  EXPECT_THAT(absent.err, AllOf(HasSubstr("no plugin of this name was found"), HasSubstr("did you mean 'sample'?")));
  EXPECT_EQ(engine("plugin info /nowhere/at/all").code, 5);
  EXPECT_EQ(engine("plugin info").code, 2);
}

TEST_F(PluginVerb, CheckListsItsChecksAsJson) {
  const json families = json::parse(engine("plugin check --list --json").out);
  EXPECT_EQ(families.at(0).at("family"), "library");
  EXPECT_EQ(families.at(0).at("checks").at(0).at("name"), "loads");
}

TEST_F(PluginVerb, TrustAllowsOnePluginAndNoOther) {
  fs::path home = lay("sample", "sample");
  lay("other", "other", called("other"));
  Ran trusted = engine("plugin trust sample " + directory());
  EXPECT_EQ(trusted.code, 0) << trusted.err;
  EXPECT_THAT(trusted.out,
              AllOf(HasSubstr("trusted: sample " + sha256_file(home / "plugin.so")), HasSubstr(user_lock().string()),
                    HasSubstr("not in the lock file and therefore refused: other")));
  json list = listed(directory());
  EXPECT_EQ(named(list, "sample").at("state"), "ready");
  EXPECT_THAT(named(list, "other").at("reason"), HasSubstr("'other' is not in the lock file"));

  fs::copy_file(library("newer_minor"), home / "plugin.so", fs::copy_options::overwrite_existing);
  EXPECT_THAT(named(listed(directory()), "sample").at("reason"), HasSubstr("but the lock file"));
  EXPECT_EQ(engine("plugin trust '" + home.string() + "'").code, 0) << "by its path";
  EXPECT_EQ(named(listed(directory()), "sample").at("state"), "ready");

  EXPECT_EQ(engine("plugin trust sample --remove").code, 0);
  EXPECT_EQ(named(listed(directory()), "sample").at("state"), "refused");
  EXPECT_EQ(engine("plugin trust sample --remove").code, 5) << "it is no longer there";
}

TEST_F(PluginVerb, ATrustedPluginsPrivateFolderIsRemovedInTheEnd) {
  lay("sample", "sample");
  EXPECT_EQ(engine("plugin trust sample " + directory()).code, 0);
  const fs::path temporary = root() / "temporary";
  fs::create_directory(temporary);
  Ran list = engine("plugin list " + directory(), "TMPDIR='" + temporary.string() + "'");
  EXPECT_THAT(list.out, AllOf(HasSubstr("sample"), HasSubstr("ready"))) << list.err;
  EXPECT_TRUE(fs::is_empty(temporary)) << "of " << *fs::directory_iterator(temporary);
}

TEST_F(PluginVerb, TrustTakesAFolderByNameAndRemovesByPath) {
  const fs::path home = lay("my-folder", "sample", {}, "."); // the engine is started beside it
  EXPECT_THAT(engine("plugin trust my-folder").out, HasSubstr("trusted: sample " + sha256_file(home / "plugin.so")));
  for (const fs::path& path : {home, home / "plugin.so", home / "plugin.toml", fs::path("./my-folder")}) {
    const Ran removed = engine("plugin trust --remove '" + path.string() + "'");
    EXPECT_EQ(removed.code, 0) << removed.err;
    EXPECT_THAT(removed.out, HasSubstr("no longer trusted: sample"));
    EXPECT_EQ(engine("plugin trust ./my-folder").code, 0);
  }
  fs::remove_all(home);
  EXPECT_EQ(engine("plugin trust --remove '" + home.string() + "'").code, 0) << "what is gone, too";
}

TEST_F(PluginVerb, TrustAdvisesOnAMalformedLockFile) {
  lay("sample", "sample");
  folder("config/fvlm-engine");
  write(user_lock(), "{\"plugins\": 3}");
  const Ran malformed = engine("plugin trust sample " + directory());
  EXPECT_EQ(malformed.code, 5);
  const std::string remove = "rm '" + user_lock().string() + "'";
  EXPECT_THAT(malformed.err, AllOf(HasSubstr(remove), HasSubstr("fvlm-engine plugin trust PLUGIN...")));
  EXPECT_EQ(shell(remove).code, 0);
  EXPECT_EQ(engine("plugin trust sample " + directory()).code, 0);
}

// U+009B starts a terminal's control sequences, U+202E reverses the text that follows it.
TEST_F(PluginVerb, ListAndInfoEscapeManifestText) {
  ManifestText text;
  text.more = "";
  const fs::path home = lay("sample", "sample");
  std::string manifest = text.text();
  manifest.replace(manifest.find("for a test"), 10, "for \u009b2J a \u202etest");
  write(home / "plugin.toml", manifest);
  const std::string output = engine("plugin info sample " + directory()).out;
  EXPECT_THAT(output, HasSubstr("for  2J a  test"));
  EXPECT_EQ(listed(directory()).at("plugins")[0].at("description"), "for  2J a  test");
  manifest.replace(manifest.find("version = \"1.0"), 14, "version = \"1.0\u202e");
  write(home / "plugin.toml", manifest);
  EXPECT_THAT(engine("plugin list " + directory()).out, HasSubstr("version: contains a control character"));
}

TEST_F(PluginVerb, TrustWritesTheGivenLockFile) {
  lay("sample", "sample");
  lay("other", "other", called("other"));
  EXPECT_EQ(engine("plugin trust sample other --lock team/plugins.lock " + directory()).code, 0);
  EXPECT_FALSE(fs::exists(user_lock()));
  json list = listed(directory() + " --lock team/plugins.lock");
  EXPECT_EQ(named(list, "sample").at("state"), "ready");
  EXPECT_EQ(named(list, "other").at("state"), "ready");
  Ran missing = engine("plugin list --lock nowhere.lock");
  EXPECT_EQ(missing.code, 5);
  EXPECT_THAT(missing.err, HasSubstr("nowhere.lock"));
  fs::permissions(root() / "team" / "plugins.lock", fs::perms(0666));
  Ran open = engine("plugin list --lock team/plugins.lock");
  EXPECT_EQ(open.code, 5);
  EXPECT_THAT(open.err, HasSubstr("a world-writable file"));
}

TEST_F(PluginVerb, TrustRefusesWritableByOthers) {
  fs::path home = lay("sample", "sample");
  fs::permissions(home / "plugin.so", fs::perms(0777));
  Ran run = engine("plugin trust sample " + directory());
  EXPECT_EQ(run.code, 5);
  EXPECT_THAT(run.err, HasSubstr("a world-writable file (mode 0777)"));
  EXPECT_FALSE(fs::exists(user_lock()));
}

TEST_F(PluginVerb, HelpBeginsWithAnExampleAndLoadsNothing) {
  lay("sample", "constructor_exits");
  for (const char* verb : {"list", "info", "trust"}) {
    Ran run = engine(fmt::format("plugin {} --help", verb));
    EXPECT_EQ(run.code, 0);
    EXPECT_THAT(run.out, testing::StartsWith("Example"));
    EXPECT_EQ(run.err, "");
  }
  EXPECT_THAT(engine("plugin").out, AllOf(HasSubstr("plugin list"), HasSubstr("plugin trust")));
}

} // namespace
} // namespace fvlm::test
