// dropin_test.cpp: plugins that any compiler built outside the checkout are found, probed and chosen by an engine that
// was not rebuilt.
#include "plugin/selection.h"
#include "sdk/plugin_builder.h"

#include <nlohmann/json.hpp>

using namespace fvlm::plugin_builder;

namespace {

class DropIn : public PluginBuilder {
 protected:
  // Runs the program without the plugins and the caches of the user.
  Result engine(const std::string& words) {
    return run("env -u FVLM_PLUGIN_PATH FVLM_CACHE='" + (folder / "cache").string() + "' XDG_CONFIG_HOME='" +
                   (folder / "config").string() + "' NO_COLOR=1 '" + (build / "bin/fvlm-engine").string() + "' " +
                   words,
               folder);
  }

  void make(const std::string& kind, const std::string& name, const std::string& lang, const std::string& tools) {
    const Result made = engine("plugin new " + kind + " " + name + " --lang " + lang);
    ASSERT_EQ(made.status, 0) << made.output;
    const Result built = run("make " + tools, folder / name);
    ASSERT_EQ(built.status, 0) << built.output;
  }

  // The entry of a plugin in `plugin list --json`.
  nlohmann::json listed(const std::string& name) {
    const Result result = engine("plugin list --json --plugin-dir . 2>/dev/null");
    EXPECT_EQ(result.status, 0) << result.output;
    const nlohmann::json listing = nlohmann::json::parse(result.output);
    for (const auto& plugin : listing.at("plugins"))
      if (plugin.at("name") == name) return plugin;
    ADD_FAILURE() << name << " is not listed:\n" << result.output;
    return {};
  }

  // Selects among the plugins of the folder for a small SwiGLU in float32.
  fvlm::SelectionReport choose(const std::vector<std::string>& preference) {
    fvlm::RegistryOptions options;
    options.directories = {folder};
    options.load.probe.program = build / "lib/fvlm/plugin-probe";
    options.load.probe.memory = folder / "cache";
    fvlm::Registry registry(options);
    fvlm_kernels_query query{};
    query.struct_size = sizeof query;
    query.op = FVLM_OP_SWIGLU;
    query.device = {FVLM_CPU, 0};
    query.dtype = query.gradient_dtype = {FVLM_FLOAT, 32, 1};
    query.rows = 16;
    query.width = 32;
    return fvlm::select<fvlm_kernels_v1>(registry, {preference, false}, query).report;
  }
};

TEST_F(DropIn, CPluginBuiltByCcIsListedAndChosen) {
  make("kernels", "kernels-in-c", "c", "CC=cc");
  EXPECT_EQ(listed("kernels-in-c").at("state"), "ready");
  EXPECT_EQ(listed("kernels-in-c").at("kinds"), nlohmann::json::array({"fvlm.kernels/1"}));
  EXPECT_EQ(choose({}).chosen, "kernels-in-c");
}

TEST_F(DropIn, PluginOfAnotherCompilerAndStandardIsChosenByName) {
  if (!has_tool("clang++")) GTEST_SKIP() << "clang is not installed";
  make("kernels", "kernels-in-c", "c", "CC=cc CFLAGS=-O1");
  make("kernels", "kernels-of-clang", "cpp", "CXX=clang++ CXXFLAGS='-O1 -std=c++20'");
  EXPECT_EQ(listed("kernels-of-clang").at("state"), "ready");
  const fvlm::SelectionReport report = choose({"kernels-of-clang"});
  EXPECT_EQ(report.chosen, "kernels-of-clang") << report.text();
}

TEST_F(DropIn, CudaPluginIsListedWithTheReasonOfNoDevice) {
  if (nvcc().empty()) GTEST_SKIP() << "no CUDA toolkit";
  make("kernels", "kernels-in-cuda", "cuda",
       "NVCCFLAGS=-O1 ARCHITECTURES=-gencode=arch=compute_90a,code=sm_90a NVCC=" + nvcc());
  const nlohmann::json plugin = listed("kernels-in-cuda");
  if (plugin.at("state") == "ready") return; // this machine has a GPU
  EXPECT_EQ(plugin.at("state"), "refused");
  EXPECT_EQ(plugin.at("reason").get<std::string>().rfind("needs a CUDA device: ", 0), 0U) << plugin;
}

} // namespace
