#include "base/error.h"
#include "base/file.h"

#include <gtest/gtest.h>

#include <fstream>
#include <sys/stat.h>
#include <unistd.h>

using namespace fvlm;
namespace fs = std::filesystem;

class FileTest : public testing::Test {
 protected:
  void SetUp() override {
    folder = fs::temp_directory_path() / ("fvlm-file-test-" + std::to_string(getpid()));
    fs::create_directories(folder);
  }
  void TearDown() override { fs::remove_all(folder); }
  fs::path folder;
};

TEST_F(FileTest, written_whole_and_nothing_left_beside_it) {
  write_file_atomic(folder / "a", "one");
  write_file_atomic(folder / "a", "second");
  EXPECT_EQ(read_file(folder / "a"), "second");
  EXPECT_EQ(std::distance(fs::directory_iterator(folder), {}), 1);
}

TEST_F(FileTest, reading_refuses_what_is_missing_too_large_or_no_file) {
  EXPECT_THROW(read_file(folder / "missing"), Error);
  EXPECT_THROW(read_file(folder), Error);
  write_file_atomic(folder / "large", std::string(100, 'x'));
  EXPECT_THROW(read_file(folder / "large", 99), Error);
  ASSERT_EQ(mkfifo((folder / "pipe").c_str(), 0600), 0);
  EXPECT_THROW(read_file(folder / "pipe"), Error) << "and it does not wait for a writer";
}

TEST_F(FileTest, a_symlink_out_of_the_folder_is_not_below_it) {
  fs::create_directories(folder / "in");
  write_file_atomic(folder / "out", "");
  fs::create_symlink(folder / "out", folder / "in" / "link");
  write_file_atomic(folder / "in" / "own", "");
  EXPECT_TRUE(is_below(folder / "in" / "own", folder / "in"));
  EXPECT_FALSE(is_below(folder / "in" / "link", folder / "in"));
  fs::create_directories(folder / "inside");
  EXPECT_FALSE(is_below(folder / "inside", folder / "in"));
}
