// Each file of escapes/ and bombs/ is a case. A first line `-- expect: REGEX` says which error the file must end in;
// without one it must return "contained" itself. A line that ends in `-- here` is the one the error must name. A line
// `-- seconds: N` lowers the wall clock's limit, for what only that one stops.
#include "author.h"

#include <algorithm>
#include <chrono>
#include <regex>
#include <sstream>
#include <sys/resource.h>
#include <sys/stat.h>

namespace fvlm::recipe {
namespace {

constexpr const char* secret = "s3cr3t-that-stays-outside";

std::vector<std::string> files_in(const std::string& folder) {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(std::string(CASES) + "/" + folder))
    if (entry.path().extension() == ".lua") names.push_back(entry.path().stem().string());
  std::sort(names.begin(), names.end());
  return names;
}

std::string read(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  std::stringstream content;
  content << file.rdbuf();
  return content.str();
}

struct Outcome {
  std::string value; // what the file returned, if it is a text
  std::string error, where;
};

struct Case {
  std::string text, expected;
  int line = 0;
  double seconds = 60;

  explicit Case(const std::string& path) : text(read(path)) {
    constexpr std::string_view mark = "-- expect: ";
    if (text.starts_with(mark)) expected = text.substr(mark.size(), text.find('\n') - mark.size());
    constexpr std::string_view clock = "-- seconds: ";
    if (size_t at = text.find(clock); at != std::string::npos) seconds = std::stod(text.substr(at + clock.size()));
    size_t here = text.find("-- here\n");
    if (here != std::string::npos) line = 1 + static_cast<int>(std::count(text.begin(), text.begin() + here, '\n'));
  }
};

// A recipe's folder with files that an escape might read, and a secret file next to it.
class Ground {
 public:
  Ground() {
    outside_.write("secret.lua", std::string("return '") + secret + "'");
    outside_.write("library/helper.lua", "return { value = 1 }");
    outside_.write("recipe/helper.lua", "return { name = 'helper' }");
    outside_.write("recipe/binary.lua", std::string("\x1bLua\x54\x00\x19\x93\r\n\x1a\n", 12));
    outside_.write("recipe/folder.lua/inner.lua", "return 1");
    outside_.write("recipe/circle_a.lua", "return require 'circle_b'");
    outside_.write("recipe/circle_b.lua", "return require 'circle_a'");
    auto link = [&](const char* target, const char* name) {
      std::filesystem::create_symlink(target, recipe_folder() / name);
    };
    link("../secret.lua", "link.lua");
    link("..", "up");
    link((outside_.folder() / "secret.lua").c_str(), "absolute.lua");
    link("/proc/self/environ", "environ.lua");
    link("/dev/zero", "zero.lua");
    link("link.lua", "link_to_link.lua");
    link("loop.lua", "loop.lua");
    mkfifo((recipe_folder() / "pipe.lua").c_str(), 0600);
    setenv("FVLM_TEST_SECRET", secret, 1);
  }

  std::filesystem::path recipe_folder() const { return outside_.folder() / "recipe"; }

  Outcome run(const Case& given) {
    outside_.write("recipe/recipe.lua", given.text);
    return run_recipe(given.seconds);
  }

  // The case as a module of guard.lua.
  Outcome run_guarded(const Case& given) {
    outside_.write("recipe/case.lua", given.text);
    outside_.write("recipe/recipe.lua", read(std::string(CASES) + "/guard.lua"));
    return run_recipe(given.seconds);
  }
  // Every file outside the recipe, with its content.
  std::string listing() const {
    std::vector<std::string> lines;
    for (const auto& entry : std::filesystem::recursive_directory_iterator(outside_.folder())) {
      std::string line = entry.path().string();
      if (line.ends_with("/recipe.lua") || line.ends_with("/case.lua")) continue; // ours
      if (!entry.is_symlink() && entry.is_regular_file()) line += read(entry.path());
      lines.push_back(line);
    }
    std::sort(lines.begin(), lines.end());
    std::string all;
    for (const auto& line : lines) all += line + "\n";
    return all;
  }

 private:
  Outcome run_recipe(double seconds) {
    SandboxConfig config = test_config();
    config.library = outside_.folder() / "library";
    config.limits.seconds = seconds;
    Outcome outcome;
    try {
      Sandbox sandbox(config);
      Value result = sandbox.run(recipe_folder() / "recipe.lua");
      if (auto* text = std::get_if<std::string>(&result.data)) outcome.value = *text;
      for (const auto& [path, text] : sandbox.files())
        if (text.find(secret) != std::string::npos) outcome.value += " leaked " + path.string();
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::recipe) << error.text();
      outcome.error = error.text();
      outcome.where = error.where();
    }
    return outcome;
  }

  Author outside_;
};

void check(const Case& given, const Outcome& outcome) {
  if (given.expected.empty()) {
    EXPECT_EQ(outcome.value, "contained") << outcome.error;
  } else {
    EXPECT_TRUE(std::regex_search(outcome.error, std::regex(given.expected)))
        << "expected an error like: " << given.expected << "\ngot: " << outcome.error << outcome.value;
  }
  if (given.line != 0) {
    EXPECT_THAT(outcome.where, testing::EndsWith("/recipe.lua:" + std::to_string(given.line))) << outcome.error;
  }
  EXPECT_THAT(outcome.error + outcome.value, testing::Not(testing::HasSubstr(secret)));
}

class SandboxEscape : public testing::TestWithParam<std::string> {};

TEST_P(SandboxEscape, IsContained) {
  Case given(std::string(CASES) + "/escapes/" + GetParam() + ".lua");
  Ground ground;
  std::string before = ground.listing();
  check(given, ground.run(given));
  // The sandbox's own tables are unchanged, unless the case was stopped before the check.
  Outcome guarded = ground.run_guarded(given);
  if (guarded.value != "intact") {
    EXPECT_TRUE(!given.expected.empty() && std::regex_search(guarded.error, std::regex(given.expected)))
        << guarded.error << guarded.value;
  }
  EXPECT_EQ(ground.listing(), before) << "files were touched";
}

INSTANTIATE_TEST_SUITE_P(, SandboxEscape, testing::ValuesIn(files_in("escapes")),
                         [](const auto& info) { return info.param; });

class SandboxBomb : public testing::TestWithParam<std::string> {};

TEST_P(SandboxBomb, IsStoppedAtItsLine) {
  Case given(std::string(CASES) + "/bombs/" + GetParam() + ".lua");
  ASSERT_FALSE(given.expected.empty()) << "a bomb ends in an error";
  Ground ground;
  rusage before{}, after{};
  getrusage(RUSAGE_SELF, &before);
  auto start = std::chrono::steady_clock::now();
  Outcome outcome = ground.run(given);
  double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  getrusage(RUSAGE_SELF, &after);
  check(given, outcome);
  long grown = (after.ru_maxrss - before.ru_maxrss) / 1024;
  RecordProperty("milliseconds", static_cast<int>(seconds * 1000));
  RecordProperty("mebibytes", static_cast<int>(grown));
  std::printf("stopped after %.3f s, memory grew by %ld MiB: %s\n", seconds, grown, outcome.error.c_str());
#ifndef __SANITIZE_ADDRESS__ // which keeps what is freed
  EXPECT_LT(grown, 150) << "MiB more memory than before, under a limit of 16 MiB";
#endif
}

INSTANTIATE_TEST_SUITE_P(, SandboxBomb, testing::ValuesIn(files_in("bombs")),
                         [](const auto& info) { return info.param; });

TEST(SandboxCases, AreComplete) {
  EXPECT_GE(files_in("escapes").size(), 100u);
  EXPECT_GE(files_in("bombs").size(), 30u);
}

} // namespace
} // namespace fvlm::recipe
