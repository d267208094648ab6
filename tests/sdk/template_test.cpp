// template_test.cpp: every template of `plugin new` builds without changes with every installed compiler, exports only
// its entry point, has the kinds of its manifest, and passes `plugin check`.
#include "base/error.h"
#include "cli/verb.h"
#include "sdk/plugin_builder.h"

#include <fvlm/fvlm.h>

#include <dlfcn.h>

using namespace fvlm::plugin_builder;

namespace {

const std::vector<std::string> kinds = {"attention", "kernels", "loss", "optimizer", "packer", "quantizer", "video"};

int plugin_new(const std::vector<std::string>& words) {
  testing::internal::CaptureStdout();
  const int status = fvlm::cli::run_plugin_new(words);
  testing::internal::GetCapturedStdout();
  return status;
}

const std::string text_of(const fs::path& file) {
  return fvlm::read_file(file);
}

fvlm_host make_host() {
  fvlm_host host{};
  host.struct_size = sizeof host;
  host.abi_major = FVLM_ABI_MAJOR;
  host.abi_minor = FVLM_ABI_MINOR;
  return host;
}

// Loads a library and asks for the kind of its manifest. The library stays loaded, as in the engine.
void expect_it_keeps_its_promises(const fs::path& folder, const std::string& name) {
  static const fvlm_host host = make_host();
  void* library = dlopen((folder / (name + ".so")).c_str(), RTLD_NOW | RTLD_LOCAL);
  ASSERT_NE(library, nullptr) << dlerror();
  const auto entry = reinterpret_cast<fvlm_plugin_entry_function>(dlsym(library, FVLM_PLUGIN_ENTRY));
  ASSERT_NE(entry, nullptr);
  const fvlm_plugin* plugin = entry(&host);
  ASSERT_NE(plugin, nullptr);
  EXPECT_EQ(plugin->name, name);
  EXPECT_STREQ(plugin->version, "0.1.0");
  const std::string manifest = text_of(folder / "plugin.toml");
  const size_t begin = manifest.find("kinds = [\"") + 10, end = manifest.find('"', begin);
  const std::string kind = manifest.substr(begin, end - begin);
  const auto* table = static_cast<const fvlm_table*>(plugin->table(kind.c_str()));
  ASSERT_NE(table, nullptr) << kind;
  EXPECT_GE(table->struct_size, sizeof(fvlm_table));
  EXPECT_EQ(plugin->table("fvlm.nothing/1"), nullptr);
}

// Zig, as a program or as PyPI's ziglang; empty: none.
std::string zig() {
  for (const std::string& command : {std::string("zig"), std::string(FVLM_PYTHON) + " -m ziglang"})
    if (run(command + " version").status == 0) return command;
  return "";
}

struct Built {
  const char* lang;
  std::string tools; // arguments of make
  const char* needs;
  std::string label;
};

void PrintTo(const Built& built, std::ostream* out) {
  *out << built.label;
}

class TemplateTest : public PluginBuilder, public testing::WithParamInterface<Built> {};

TEST_P(TemplateTest, BuildsUnchangedAndExportsItsEntryPointOnly) {
  const Built& built = GetParam();
  const std::string needs = built.needs;
  if (needs == "zig" ? zig().empty() : !has_tool(needs)) GTEST_SKIP() << needs << " is not installed";
  const std::string tools = built.tools + (needs == "zig" ? " ZIG='" + zig() + "'" : "");
  for (const std::string& kind : kinds) {
    const std::string lang = built.lang, name = kind + "-" + built.label;
    if (!fs::exists(build / "share/fvlm/template" / kind / lang)) continue;
    SCOPED_TRACE(name);
    const fs::path made = folder / name;
    ASSERT_EQ(plugin_new({kind, name, "--lang", lang, "--dir", made.string()}), 0);
    const Result make = run("make " + tools, made);
    ASSERT_EQ(make.status, 0) << make.output;
    EXPECT_EQ(make.output.find("warning:"), std::string::npos) << make.output;
    EXPECT_EQ(exported(made / (name + ".so")), std::set<std::string>{FVLM_PLUGIN_ENTRY});
    expect_it_keeps_its_promises(made, name);
  }
}

INSTANTIATE_TEST_SUITE_P(
    Compilers, TemplateTest,
    testing::Values(Built{"c", "CC=gcc CFLAGS='-O1 -Wall -Wextra -Wpedantic -Werror'", "gcc", "gcc"},
                    Built{"c", "CC=clang CFLAGS='-O1 -Wall -Wextra -Wpedantic -Werror'", "clang", "clang"},
                    Built{"cpp", "CXX=g++ CXXFLAGS='-O1 -Wall -Wextra -Wpedantic -Werror'", "g++", "gxx17"},
                    Built{"cpp", "CXX='clang++' CXXFLAGS='-O1 -Wall -Wextra -Wpedantic -Werror -std=c++20'", "clang++",
                          "clangxx20"},
                    Built{"cuda",
                          "NVCCFLAGS='-O1 -Werror all-warnings -Xcompiler -Wall,-Wextra' "
                          "ARCHITECTURES=-gencode=arch=compute_90a,code=sm_90a",
                          "/usr/local/cuda/bin/nvcc", "nvcc"},
                    Built{"rust", "RUSTFLAGS='-C opt-level=1 -D warnings'", "rustc", "rustc"},
                    Built{"zig", "ZIGFLAGS='-O ReleaseSafe'", "zig", "zig"}),
    [](const auto& tried) { return tried.param.label; });

// An installation's path may have spaces.
TEST_F(PluginBuilder, TemplatesBuildWithAnSdkWhosePathHasSpaces) {
  const fs::path sdk = folder / "a place for it";
  fs::create_directory_symlink(build, sdk);
  for (const std::string lang : {"c", "cpp", "cuda", "zig"}) {
    if ((lang == "zig" && zig().empty()) || (lang == "cuda" && nvcc().empty())) continue;
    SCOPED_TRACE(lang);
    const fs::path made = folder / ("kernels-" + lang);
    ASSERT_EQ(plugin_new({"kernels", "kernels-spaces", "--lang", lang, "--dir", made.string()}), 0);
    const Result make = run("make SDK='" + sdk.string() + "'" + (lang == "zig" ? " ZIG='" + zig() + "'" : ""), made);
    EXPECT_EQ(make.status, 0) << make.output;
  }
}

// As the README of a template says: make, then plugin check.
class TemplateCheck : public PluginBuilder, public testing::WithParamInterface<std::tuple<std::string, std::string>> {};

TEST_P(TemplateCheck, PassesPluginCheckUnchanged) {
  const auto& [kind, lang] = GetParam();
  if (lang == "rust" && !has_tool("rustc")) GTEST_SKIP() << "rustc is not installed";
  if (lang == "zig" && zig().empty()) GTEST_SKIP() << "zig is not installed";
  const std::string name = kind + "-mine";
  ASSERT_EQ(plugin_new({kind, name, "--lang", lang, "--dir", (folder / name).string()}), 0);
  const Result make = run(lang == "zig" ? "make ZIG='" + zig() + "'" : "make", folder / name);
  ASSERT_EQ(make.status, 0) << make.output;
  const Result check = run("NO_COLOR=1 '" + (build / "bin/fvlm-engine").string() + "' plugin check .", folder / name);
  EXPECT_EQ(check.status, 0) << check.output;
  EXPECT_NE(check.output.find("\n" + name + " 0.1.0: passed"), std::string::npos) << check.output;
}

INSTANTIATE_TEST_SUITE_P(Templates, TemplateCheck,
                         testing::Combine(testing::ValuesIn(kinds), testing::Values("c", "cpp")),
                         [](const auto& tried) { return std::get<0>(tried.param) + "_" + std::get<1>(tried.param); });

INSTANTIATE_TEST_SUITE_P(OtherLanguages, TemplateCheck,
                         testing::Combine(testing::Values("kernels"), testing::Values("rust", "zig")),
                         [](const auto& tried) { return std::get<0>(tried.param) + "_" + std::get<1>(tried.param); });

using ZigTemplate = PluginBuilder;

TEST_F(ZigTemplate, LeavesNoEmptyFileWhereTheCompilerIsMissing) {
  const fs::path made = folder / "kernels-mine";
  ASSERT_EQ(plugin_new({"kernels", "kernels-mine", "--lang", "zig", "--dir", made.string()}), 0);
  const Result make = run("make ZIG=there-is-no-zig", made);
  EXPECT_NE(make.status, 0) << make.output;
  EXPECT_FALSE(fs::exists(made / "fvlm.zig")) << "the next make would take it for the header's structs";
}

using CheckOnly = PluginBuilder;

TEST_F(CheckOnly, ReportsAnUnknownCheckName) {
  const Result none =
      run("'" + (build / "bin/fvlm-engine").string() + "' plugin check packer-bestfit --only nosuch,neither");
  EXPECT_EQ(none.status, 2) << none.output;
  EXPECT_NE(none.output.find("no check's name contains 'nosuch,neither'"), std::string::npos) << none.output;
}

// The numbers of a CUDA template, on a machine without a GPU: its kernels run as functions of the host.
using CudaOnHost = PluginBuilder;

TEST_F(CudaOnHost, CudaSourcesAlsoCompileForTheHost) {
  for (const std::string& kind : kinds) {
    const std::string name = kind + "-host";
    if (!fs::exists(build / "share/fvlm/template" / kind / "cuda")) continue;
    SCOPED_TRACE(name);
    const fs::path made = folder / name;
    ASSERT_EQ(plugin_new({kind, name, "--lang", "cuda", "--dir", made.string()}), 0);
    const Result compiled =
        run("g++ -std=c++17 -O1 -Wall -Wextra -Werror -shared -fPIC -fvisibility=hidden -x c++ plugin.cu -o " + name +
                ".so -I'" + (source / "tests/sdk/cuda_on_host").string() + "' -I'" + include.string() + "'",
            made);
    ASSERT_EQ(compiled.status, 0) << compiled.output;
    expect_it_keeps_its_promises(made, name);
  }
}

class PluginNew : public PluginBuilder {
 protected:
  std::string refusal(const std::vector<std::string>& words) {
    try {
      plugin_new(words);
    } catch (const fvlm::Error& error) {
      testing::internal::GetCapturedStdout();
      EXPECT_EQ(error.exit_code(), 2);
      return error.text();
    }
    return "none";
  }
};

TEST_F(PluginNew, FillsInEveryNameAndPrintsNextSteps) {
  const fs::path made = folder / "loss-mine";
  testing::internal::CaptureStdout();
  const std::vector<std::string> words = {"loss", "loss-mine", "--lang", "cpp", "--dir", made.string()};
  ASSERT_EQ(fvlm::cli::run_plugin_new(words), 0);
  const std::string said = testing::internal::GetCapturedStdout();
  EXPECT_NE(said.find("cd " + made.string() + "\n  make\n  fvlm-engine plugin check ."), std::string::npos) << said;

  std::set<std::string> files;
  for (const auto& entry : fs::directory_iterator(made)) {
    files.insert(entry.path().filename().string());
    EXPECT_EQ(text_of(entry.path()).find("@NAME@"), std::string::npos) << entry.path();
    EXPECT_EQ(text_of(entry.path()).find("@SDK@"), std::string::npos) << entry.path();
    EXPECT_EQ(text_of(entry.path()).find("@SOURCE@"), std::string::npos) << entry.path();
    const auto others = fs::status(entry.path()).permissions() & (fs::perms::group_write | fs::perms::others_write);
    EXPECT_EQ(others, fs::perms::none) << entry.path() << ": the engine would refuse it";
  }
  EXPECT_EQ(files, (std::set<std::string>{"plugin.cpp", "plugin.toml", "Makefile", "CMakeLists.txt", "README.md"}));
  EXPECT_NE(text_of(made / "plugin.toml").find("library = \"loss-mine.so\""), std::string::npos);
  EXPECT_NE(text_of(made / "plugin.cpp").find("FVLM_PLUGIN(\"loss-mine\""), std::string::npos);
}

TEST_F(PluginNew, RefusesToOverwrite) {
  write("kept/notes.txt", "mine");
  const std::string text = refusal({"loss", "loss-mine", "--dir", (folder / "kept").string()});
  EXPECT_NE(text.find("the path already exists"), std::string::npos) << text;
  EXPECT_EQ(std::distance(fs::directory_iterator(folder / "kept"), {}), 1);
  fs::create_symlink(folder / "nowhere", folder / "dangling");
  EXPECT_NE(refusal({"loss", "loss-mine", "--dir", (folder / "dangling").string()}).find("already exists"),
            std::string::npos);
}

TEST_F(PluginNew, RefusesInvalidNames) {
  for (const std::string name : {"", "Attention", "9lives", "a b", "a/b", "../a", "a\"b", "caf\xc3\xa9"}) {
    EXPECT_NE(refusal({"loss", name, "--dir", (folder / "x").string()}).find("cannot be a plugin's name"),
              std::string::npos)
        << name;
  }
  EXPECT_NE(refusal({"loss", std::string(65, 'a'), "--dir", (folder / "x").string()}).find("64 at most"),
            std::string::npos);
  EXPECT_NE(refusal({"loss", "reference", "--dir", (folder / "x").string()}).find("is reserved"), std::string::npos);
  EXPECT_FALSE(fs::exists(folder / "x"));
}

TEST_F(PluginNew, SuggestsKindsAndLanguagesAndExplainsTheMissingCudaPacker) {
  const std::string dir = (folder / "x").string();
  EXPECT_NE(refusal({"atention", "x", "--dir", dir}).find("did you mean 'attention'?"), std::string::npos);
  EXPECT_NE(
      refusal({"tokenizer", "x", "--dir", dir}).find("attention, kernels, loss, optimizer, packer, quantizer or video"),
      std::string::npos);
  EXPECT_NE(refusal({"loss", "x", "--lang", "go", "--dir", dir}).find("c, cpp, cuda, rust or zig"), std::string::npos);
  const std::string no_template = refusal({"loss", "x", "--lang", "rust", "--dir", dir});
  EXPECT_NE(no_template.find("use --lang c, cpp or cuda"), std::string::npos) << no_template;
  const std::string text = refusal({"packer", "x", "--lang", "cuda", "--dir", dir});
  EXPECT_NE(text.find("runs on the host only"), std::string::npos) << text;
  EXPECT_NE(text.find("--lang c or cpp"), std::string::npos) << text;
}

} // namespace
