// Untrusted text that is printed cannot send commands to the terminal.
#include "program.h"

#include <gmock/gmock.h>

using namespace fvlm;
using testing::HasSubstr;
using testing::Not;

namespace {

struct TerminalOutput : test::Program {
  // A recipe whose paths hold an escape sequence, U+009B, a lone 0x9b and a bidirectional override.
  void write_recipe() const {
    write_file_atomic(scratch / "r.lua", R"(local fvlm = require "fvlm"
local nasty = "a\27[2J\27]0;title\7\27[31mb\u{9b}31mc\u{202e}gpj"
return fvlm.recipe {
  name = "x", model = fvlm.model { vision = "none/" .. nasty, decoder = "none" },
  fvlm.stage "s" { objective = fvlm.next_token {}, optimizer = fvlm.adamw { lr = 1e-3 }, samples = 1, batch = 1,
    data = fvlm.mix { nasty .. "/{00..02}.tar" } },
})");
  }

  static void expect_clean(const std::string& text) {
    for (const char* command : {"\x1b", "\x07", "\xc2\x9b", "\u202e"})
      EXPECT_THAT(text, Not(HasSubstr(command))) << testing::PrintToString(text);
  }
};

TEST_F(TerminalOutput, PathsOfARecipeAreCleaned) {
  write_recipe();
  for (const char* verb :
       {"plan r.lua", "plan r.lua --all", "check r.lua --files", "plan r.lua --diff r.lua --set seed=7"}) {
    const auto ran = run(verb, "TERM=xterm");
    EXPECT_THAT(ran.out + ran.err,
                HasSubstr(verb == std::string("plan r.lua --diff r.lua --set seed=7") ? "seed" : "gpj"))
        << verb << ran.err;
    expect_clean(ran.out);
    expect_clean(ran.err);
  }
}

TEST_F(TerminalOutput, JsonKeepsThemAsEscapes) {
  write_recipe();
  const auto ran = run("plan r.lua --json");
  ASSERT_EQ(ran.code, 0) << ran.err;
  expect_clean(ran.out);
  const auto document = nlohmann::json::parse(ran.out);
  EXPECT_THAT(document.dump(), HasSubstr("\xc2\x9b"
                                         "31mc\u202egpj"))
      << "a plan file loses nothing";
}

TEST_F(TerminalOutput, ADescriptionOfAPluginIsCleaned) {
  const auto folder = scratch / "plugins" / "theirs";
  std::filesystem::create_directories(folder);
  write_file_atomic(folder / "plugin.toml", "name = \"theirs\"\nversion = \"1\"\nlicense = \"MIT\"\nabi = \"1.0\"\n"
                                            "kinds = [\"fvlm.packer/1\"]\ndevices = [\"cpu\"]\nlibrary = \"t.so\"\n"
                                            "description = \"a\\u009b31mc\\u202Ed\"\n");
  write_file_atomic(folder / "t.so", "no library");
  for (const char* verb : {"plugin list", "plugin info theirs", "plugin list --json"}) {
    const auto ran = run(std::string(verb) + " --plugin-dir plugins", "TERM=xterm");
    EXPECT_THAT(ran.out + ran.err, HasSubstr("theirs")) << verb;
    expect_clean(ran.out);
    expect_clean(ran.err);
  }
}

} // namespace
