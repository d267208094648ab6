#include "base/atomic_file.h"
#include "base/error.h"
#include "base/file.h"
#include "base/interrupt.h"
#include "base/log_file.h"
#include "base/mapped_file.h"

#include <gtest/gtest.h>

#include <csignal>
#include <cstdlib>
#include <functional>
#include <pwd.h>
#include <sys/resource.h>
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

TEST_F(FileTest, WritesWholeFileWithoutLeftovers) {
  write_file_atomic(folder / "a", "one");
  write_file_atomic(folder / "a", "second");
  EXPECT_EQ(read_file(folder / "a"), "second");
  EXPECT_EQ(std::distance(fs::directory_iterator(folder), {}), 1);
}

TEST_F(FileTest, RefusesToReadMissingTooLargeAndNonFiles) {
  EXPECT_THROW(read_file(folder / "missing"), Error);
  EXPECT_THROW(read_file(folder), Error);
  write_file_atomic(folder / "large", std::string(100, 'x'));
  EXPECT_THROW(read_file(folder / "large", 99), Error);
  ASSERT_EQ(mkfifo((folder / "pipe").c_str(), 0600), 0);
  EXPECT_THROW(read_file(folder / "pipe"), Error) << "and it does not wait for a writer";
}

TEST_F(FileTest, SymlinkOutOfFolderIsNotBelowIt) {
  fs::create_directories(folder / "in");
  write_file_atomic(folder / "out", "");
  fs::create_symlink(folder / "out", folder / "in" / "link");
  write_file_atomic(folder / "in" / "own", "");
  EXPECT_TRUE(is_below(folder / "in" / "own", folder / "in"));
  EXPECT_FALSE(is_below(folder / "in" / "link", folder / "in"));
  fs::create_directories(folder / "inside");
  EXPECT_FALSE(is_below(folder / "inside", folder / "in"));
}

TEST_F(FileTest, UncommittedAtomicFileKeepsOldContent) {
  write_file_atomic(folder / "a", "old");
  {
    AtomicFile file(folder / "a");
    file.write("new");
    EXPECT_EQ(read_file(folder / "a"), "old");
  }
  EXPECT_EQ(read_file(folder / "a"), "old");
  EXPECT_EQ(std::distance(fs::directory_iterator(folder), {}), 1);
}

TEST_F(FileTest, AtomicFileKeepsPiecesInOrder) {
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

TEST_F(FileTest, AtomicFolderAppearsWholeOrNotAtAll) {
  {
    AtomicFolder unfinished(folder / "one");
    write_file_atomic(unfinished.temporary_path() / "a", "x");
  }
  EXPECT_TRUE(fs::is_empty(folder));
  AtomicFolder finished(folder / "one/");
  fs::create_directory(finished.temporary_path() / "in");
  write_file_atomic(finished.temporary_path() / "in" / "a", "x");
  EXPECT_FALSE(fs::exists(folder / "one"));
  finished.commit();
  EXPECT_EQ(read_file(folder / "one" / "in" / "a"), "x");
  EXPECT_EQ(std::distance(fs::directory_iterator(folder), {}), 1);
  EXPECT_THROW(AtomicFolder(folder / "one"), Error) << "what is there is never written over";
  AtomicFolder(folder / "new" / "deep" / "one").commit();
  EXPECT_TRUE(fs::is_directory(folder / "new/deep/one")) << "the folders above it are made";
}

ErrorKind kind_of(const std::function<void()>& action) {
  try {
    action();
  } catch (const Error& error) {
    return error.kind();
  }
  return ErrorKind::internal;
}

// The names of temporary files for `path` while it is written.
std::vector<fs::path> partial_names(const fs::path& folder) {
  std::vector<fs::path> names;
  for (const auto& entry : fs::directory_iterator(folder))
    if (entry.path().filename().string().find(".partial-") != std::string::npos) names.push_back(entry.path());
  return names;
}

TEST_F(FileTest, UnfinishedNamesCannotBeGuessed) {
  AtomicFile one(folder / "a"), two(folder / "a");
  const auto names = partial_names(folder);
  ASSERT_EQ(names.size(), 2u);
  const std::string number = std::to_string(getpid());
  for (const fs::path& name : names) {
    EXPECT_FALSE(name.string().ends_with(".partial-" + number)) << "the process's number is known to everybody";
    EXPECT_EQ(name.filename().string().size(), std::string("a.partial-").size() + 16) << name;
  }
}

TEST_F(FileTest, ASymlinkLaidInTheWayIsReplacedNotFollowed) {
  write_file_atomic(folder / "precious", "mine");
  for (const char* name : {"a", "log"}) fs::create_symlink(folder / "precious", folder / name);
  fs::create_symlink(folder / "precious", folder / ("a.partial-" + std::to_string(getpid())));
  write_file_atomic(folder / "a", "new");
  EXPECT_EQ(read_file(folder / "a"), "new");
  EXPECT_FALSE(fs::is_symlink(folder / "a"));
  EXPECT_EQ(kind_of([&] { (void)open_kept_file(folder / "log"); }), ErrorKind::output);
  EXPECT_EQ(kind_of([&] { LogFile log(folder / "log"); }), ErrorKind::output);
  EXPECT_EQ(read_file(folder / "precious"), "mine");
}

TEST_F(FileTest, ALogOnAFullDiskWarnsOnceAndGoesOnWhereThereIsRoom) {
  const auto path = folder / "log";
  std::signal(SIGXFSZ, SIG_IGN);
  rlimit limit{}, small{};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &limit), 0);
  small = limit;
  testing::internal::CaptureStderr();
  {
    LogFile log(path);
    log.write(LogLevel::info, std::string(10'000, '.') + "before"); // the limit leaves room for what is captured
    small.rlim_cur = fs::file_size(path) + 10;
    ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &small), 0);
    for (int i = 0; i < 3; ++i) log.write(LogLevel::info, "lost");
    ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &limit), 0);
    log.write(LogLevel::info, "after");
  }
  const std::string said = testing::internal::GetCapturedStderr(), kept = read_file(path);
  const std::string warning = "lines of the log cannot be written and are lost: File too large";
  EXPECT_NE(said.find(warning), std::string::npos) << said;
  EXPECT_EQ(said.find(warning), said.rfind(warning)) << said;
  EXPECT_NE(kept.find(".before\n"), std::string::npos) << kept;
  EXPECT_EQ(kept.find("lost"), std::string::npos) << kept;
  EXPECT_NE(kept.find(" info: after\n"), std::string::npos) << kept;
}

TEST_F(FileTest, ADeviceIsNotReplacedByAFile) {
  const auto pipe = folder / "pipe", link = folder / "link";
  ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
  fs::create_symlink(pipe, link);
  for (const auto& name : {pipe, link}) try {
      write_file_atomic(name, "text");
      FAIL() << name;
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::output);
      EXPECT_NE(error.text().find("this is a device, pipe or socket"), std::string::npos) << error.text();
    }
  EXPECT_TRUE(fs::is_fifo(pipe));
  EXPECT_TRUE(fs::is_symlink(link)) << "as /dev/stdout is one";
}

TEST_F(FileTest, AKeptFileIsMadeOnceAndIsARegularFile) {
  EXPECT_TRUE(open_kept_file(folder / "kept"));
  write_file_atomic(folder / "kept", "text");
  EXPECT_TRUE(open_kept_file(folder / "kept"));
  EXPECT_EQ(read_file(folder / "kept"), "text") << "opening cuts nothing";
  ASSERT_EQ(mkfifo((folder / "pipe").c_str(), 0600), 0);
  EXPECT_EQ(kind_of([&] { (void)open_kept_file(folder / "pipe"); }), ErrorKind::output) << "and it does not wait";
}

TEST_F(FileTest, WhatCannotBeWrittenIsOutputAndWhatCannotBeReadIsData) {
  EXPECT_EQ(kind_of([&] { (void)read_file(folder / "missing"); }), ErrorKind::data);
  EXPECT_EQ(kind_of([&] { write_file_atomic(folder / "missing" / "a", ""); }), ErrorKind::output);
  EXPECT_EQ(kind_of([&] { make_folders("/proc/none"); }), ErrorKind::output);
  EXPECT_EQ(kind_of([&] { AtomicFolder(folder.parent_path()); }), ErrorKind::output) << "there is something";
}

TEST_F(FileTest, AFolderOfAKilledProcessIsRemovedAndOneInUseStays) {
  const fs::path dead = folder / "model.partial-0123456789abcdef";
  fs::create_directories(dead / "in");
  AtomicFolder first(folder / "model");
  EXPECT_FALSE(fs::exists(dead)) << "nobody holds it";
  AtomicFolder second(folder / "model");
  EXPECT_TRUE(fs::is_directory(first.temporary_path())) << "this one is in use";
  EXPECT_NE(first.temporary_path(), second.temporary_path());
}

TEST_F(FileTest, ASignalEndsWritingAndLeavesNothingUnfinished) {
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) {
    const InterruptibleWrites interruptible;
    try {
      AtomicFolder made(folder / "model");
      write_file_atomic(made.temporary_path() / "a", "x");
      ASSERT_EQ(raise(signal), 0);
      write_file_atomic(made.temporary_path() / "b", "x");
      ADD_FAILURE() << "written on after signal " << signal;
    } catch (const Interrupted& interrupted) {
      EXPECT_EQ(interrupted.signal(), signal);
    }
    EXPECT_TRUE(fs::is_empty(folder));
  }
  write_file_atomic(folder / "a", "x");
  EXPECT_EQ(read_file(folder / "a"), "x") << "the signal of before is forgotten";
}

TEST(CacheFolder, IsNeverSharedWithOthersNorBelowTheWorkingFolder) {
  const auto with = [](const char* own, const char* xdg, const char* home) {
    const auto put = [](const char* name, const char* value) { value ? setenv(name, value, 1) : unsetenv(name); };
    put("FVLM_CACHE", own), put("XDG_CACHE_HOME", xdg), put("HOME", home);
    return cache_folder().string();
  };
  const passwd* person = getpwuid(geteuid());
  ASSERT_NE(person, nullptr);
  const std::string own = std::string(person->pw_dir) + "/.cache/fvlm-engine";
  EXPECT_EQ(with("/c", "/x", "/h"), "/c");
  EXPECT_EQ(with(nullptr, "/x", "/h"), "/x/fvlm-engine");
  EXPECT_EQ(with(nullptr, nullptr, "/h"), "/h/.cache/fvlm-engine");
  EXPECT_EQ(with(nullptr, nullptr, nullptr), own) << "not /tmp";
  EXPECT_EQ(with(nullptr, "x", "."), own) << "nothing below the working folder";
}

TEST_F(FileTest, MappedFileOutlivesItsName) {
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
