#include "base/atomic_file.h"
#include "base/error.h"
#include "base/file.h"
#include "base/mapped_file.h"

#include <gtest/gtest.h>

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

TEST_F(FileTest, an_atomic_file_that_is_not_committed_leaves_the_old_one_and_nothing_else) {
  write_file_atomic(folder / "a", "old");
  {
    AtomicFile file(folder / "a");
    file.write("new");
    EXPECT_EQ(read_file(folder / "a"), "old");
  }
  EXPECT_EQ(read_file(folder / "a"), "old");
  EXPECT_EQ(std::distance(fs::directory_iterator(folder), {}), 1);
}

TEST_F(FileTest, an_atomic_file_holds_every_piece_in_order) {
  std::string expected;
  AtomicFile file(folder / "a");
  for (size_t size : {1, 100, 300000, 262144, 262143, 5}) {
    std::string piece(size, static_cast<char>('a' + expected.size() % 26));
    file.write(piece);
    expected += piece;
  }
  file.commit();
  EXPECT_TRUE(read_file(folder / "a") == expected);
}

TEST_F(FileTest, an_atomic_folder_appears_with_all_its_files_or_not_at_all) {
  {
    AtomicFolder unfinished(folder / "one");
    write_file_atomic(unfinished.beside() / "a", "x");
  }
  EXPECT_TRUE(fs::is_empty(folder));
  AtomicFolder finished(folder / "one/");
  fs::create_directory(finished.beside() / "in");
  write_file_atomic(finished.beside() / "in" / "a", "x");
  EXPECT_FALSE(fs::exists(folder / "one"));
  finished.commit();
  EXPECT_EQ(read_file(folder / "one" / "in" / "a"), "x");
  EXPECT_EQ(std::distance(fs::directory_iterator(folder), {}), 1);
  EXPECT_THROW(AtomicFolder(folder / "one"), Error) << "what is there is never written over";
  EXPECT_THROW(AtomicFolder(folder / "nowhere" / "one"), Error);
}

TEST_F(FileTest, a_mapped_file_keeps_its_bytes_when_the_file_goes) {
  std::string content(20000, 'x');
  write_file_atomic(folder / "a", content);
  write_file_atomic(folder / "empty", "");
  auto mapped = MappedFile::open(folder / "a");
  EXPECT_TRUE(MappedFile::open(folder / "empty")->bytes().empty());
  fs::remove(folder / "a");
  EXPECT_TRUE(mapped->text() == content);
  mapped->drop(mapped->bytes());
  mapped->drop(mapped->bytes().subspan(5, 3));
  EXPECT_TRUE(mapped->text() == content);
  EXPECT_THROW(MappedFile::open(folder / "a"), Error);
  EXPECT_THROW(MappedFile::open(folder), Error);
}
