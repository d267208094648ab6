#include "base/error.h"
#include "base/file.h"
#include "base/glob.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <gmock/gmock.h>
#include <unistd.h>

using namespace fvlm;
using testing::ElementsAre;
using testing::HasSubstr;
namespace fs = std::filesystem;

static std::string refusal(const std::string& pattern) {
  try {
    expand_braces(pattern);
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::data);
    return error.text();
  }
  return "none";
}

TEST(Braces, KeepRangeWidthAndListOrder) {
  EXPECT_THAT(expand_braces("plain.tar"), ElementsAre("plain.tar"));
  EXPECT_THAT(expand_braces("a{008..010}.tar"), ElementsAre("a008.tar", "a009.tar", "a010.tar"));
  EXPECT_THAT(expand_braces("{8..10}"), ElementsAre("8", "9", "10"));
  EXPECT_THAT(expand_braces("{b,a}/{0..1}"), ElementsAre("b/0", "b/1", "a/0", "a/1"));
  EXPECT_THAT(expand_braces("{x{0..1},,y}z"), ElementsAre("x0z", "x1z", "z", "yz"));
  EXPECT_EQ(expand_braces("{0000..0999}.tar").size(), 1000u);
}

TEST(Braces, LeaveOtherBracesRefused) {
  EXPECT_THAT(refusal("a{0..9.tar"), HasSubstr("a{0..9.tar: the brace at character 2 is not closed"));
  EXPECT_THAT(refusal("a}.tar"), HasSubstr("character 2 was never opened"));
  EXPECT_THAT(refusal("{word}"), HasSubstr("'{word}' is neither a range nor a list"));
  EXPECT_THAT(refusal("{}"), HasSubstr("neither"));
  EXPECT_THAT(refusal("{-1..3}"), HasSubstr("neither"));
  EXPECT_THAT(refusal("{9..3}"), HasSubstr("ends before it begins"));
  EXPECT_THAT(refusal("{0..9999999999999}"), HasSubstr("more than 1000000 names"));
  EXPECT_THAT(refusal("{0..9999}{0..9999}"), HasSubstr("more than 1000000 names"));
  EXPECT_THAT(refusal("{0..99999999999999999999}"), HasSubstr("neither"));
  EXPECT_THAT(refusal(std::string(100000, '{')), HasSubstr("more than 4096 characters"));
  EXPECT_THAT(refusal(std::string(4000, '{')), HasSubstr("not closed"));
}

class GlobTest : public testing::Test {
 protected:
  void SetUp() override {
    for (const char* name : {"b.tar", "a.tar", ".hidden.tar", "note.txt", "00.tar"}) write_file_atomic(at(name), "");
  }
  void TearDown() override { fs::remove_all(folder); }
  std::string at(const std::string& name) {
    fs::create_directories(folder);
    return (folder / name).string();
  }
  fs::path folder = fs::temp_directory_path() / fmt::format("fvlm-glob-test-{}", getpid());
};

TEST_F(GlobTest, WildcardsGiveSortedFiles) {
  auto found = match_files(at("*.tar"));
  EXPECT_THAT(found.files, ElementsAre(at("00.tar"), at("a.tar"), at("b.tar")));
  EXPECT_TRUE(found.nothing.empty());
  EXPECT_THAT(match_files(at("[ab].tar")).files, ElementsAre(at("a.tar"), at("b.tar")));
}

TEST_F(GlobTest, ReportsMissingFiles) {
  auto found = match_files(at("{00..02}.tar"));
  EXPECT_THAT(found.files, ElementsAre(at("00.tar")));
  EXPECT_THAT(found.nothing, ElementsAre(at("01.tar"), at("02.tar")));
  EXPECT_THAT(match_files(at("{x,a}*.tar")).nothing, ElementsAre(at("x*.tar")));
  EXPECT_THAT(match_files(at("none/*.tar")).nothing, ElementsAre(at("none/*.tar")));
}
