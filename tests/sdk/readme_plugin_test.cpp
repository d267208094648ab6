// readme_plugin_test.cpp: the plugin of README.md, taken from its text, builds and passes by the commands that it
// gives.
#include "sdk/plugin_builder.h"

using namespace fvlm::plugin_builder;

namespace {

// The first block of code in `language` behind `heading`; empty where there is none.
std::string block_of(const std::string& text, const std::string& heading, const std::string& language) {
  const size_t section = text.find("\n" + heading + "\n");
  if (section == std::string::npos) return "";
  const std::string fence = "\n```" + language + "\n";
  const size_t begin = text.find(fence, section), end = text.find("\n```\n", begin + 1);
  if (begin == std::string::npos || end == std::string::npos) return "";
  return text.substr(begin + fence.size(), end + 1 - begin - fence.size());
}

using ReadmePlugin = PluginBuilder;

TEST_F(ReadmePlugin, BuildsAndPassesPluginCheckByItsOwnCommands) {
  const std::string readme = fvlm::read_file(source / "README.md");
  std::string commands = block_of(readme, "## A plugin", "sh");
  ASSERT_NE(commands.find("fvlm-engine plugin check ."), std::string::npos) << commands;
  const std::string checkout = "/path/to/fvlm-engine";
  const size_t at = commands.find(checkout);
  ASSERT_NE(at, std::string::npos) << commands;
  commands.replace(at, checkout.size(), source.string());
  write("swiglu.cpp", block_of(readme, "## A plugin", "cpp"));
  write("plugin.toml", block_of(readme, "## A plugin", "toml"));
  const Result ran = run("set -e; export NO_COLOR=1 FVLM_CACHE='" + (folder / "cache").string() + "' PATH='" +
                             (build / "bin").string() + "':\"$PATH\"\n" + commands,
                         folder);
  EXPECT_EQ(ran.status, 0) << ran.output;
  EXPECT_NE(ran.output.find("kernels-swiglu 1.0.0: passed"), std::string::npos) << ran.output;
  EXPECT_EQ(exported(folder / "kernels-swiglu.so"), std::set<std::string>{"fvlm_plugin_entry_v1"});
}

} // namespace
