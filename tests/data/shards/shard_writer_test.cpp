#include "base/error.h"
#include "base/file.h"
#include "data/shards/shard_writer.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <unistd.h>

using namespace fvlm;
namespace fs = std::filesystem;

namespace {

class ShardWriterTest : public testing::Test {
 protected:
  void SetUp() override { fs::create_directories(folder); }
  void TearDown() override { fs::remove_all(folder); }
  fs::path folder = fs::temp_directory_path() / fmt::format("fvlm-shard-writer-{}", getpid());
};

struct Entry {
  std::string name, content;
};

std::vector<Entry> entries() {
  std::vector<Entry> all{{"000000.json", R"({"caption":"a red circle"})"}, {"000000.jpg", std::string(5000, '\xff')}};
  all.push_back({"clips/empty.txt", ""});
  all.push_back({"clips/exact.bin", std::string(1024, 'x')});
  all.push_back({"Größe/紅.json", "{}"});
  for (size_t length : {99, 100, 101, 102, 155, 156, 255, 256, 257, 300, 900}) { // about the limits of the fields
    all.push_back({std::string(length, 'k') + ".json", fmt::format("{}", length)});
    all.push_back({std::string(length / 2, 'f') + "/" + std::string(length / 2, 'k') + ".json", "cut"});
    all.push_back({std::string(length, 'f') + "/k.json", "long folder"});
  }
  return all;
}

void write(const fs::path& path) {
  ShardWriter writer(path);
  for (const Entry& entry : entries()) writer.add(entry.name, entry.content);
  EXPECT_FALSE(fs::exists(path)) << "it is there before commit()";
  writer.commit();
  EXPECT_EQ(fs::file_size(path), writer.size());
}

} // namespace

TEST_F(ShardWriterTest, PythonTarfileReadsEveryMember) {
  write(folder / "a.tar");
  std::string listing;
  for (const Entry& entry : entries()) {
    listing += fmt::format("{} {} ", entry.name, entry.content.size());
    for (char c : entry.content) listing += fmt::format("{:02x}", static_cast<unsigned char>(c));
    listing += "\n";
  }
  write_file_atomic(folder / "expected", listing);
  write_file_atomic(folder / "read.py", R"(
import sys, tarfile
lines = open(sys.argv[2], encoding="utf-8").read().splitlines()
with tarfile.open(sys.argv[1], errorlevel=2) as tar:
    members = tar.getmembers()
    for member, line in zip(members, lines):
        got = f"{member.name} {member.size} {tar.extractfile(member).read().hex()}"
        assert got == line, f"{got[:400]!r}, not {line[:400]!r}"
        assert (member.mtime, member.mode, member.uid, member.isreg()) == (0, 0o644, 0, True), member.get_info()
assert len(members) == len(lines), f"{len(members)} members, not {len(lines)}"
)");
  auto command = fmt::format("python3 {0}/read.py {0}/a.tar {0}/expected", folder.string());
  EXPECT_EQ(std::system(command.c_str()), 0);
  EXPECT_EQ(std::system(fmt::format("tar tf {}/a.tar > /dev/null", folder.string()).c_str()), 0) << "GNU tar";
}

TEST_F(ShardWriterTest, SameMembersGiveTheSameBytes) {
  write(folder / "a.tar");
  write(folder / "b.tar");
  EXPECT_TRUE(read_file(folder / "a.tar") == read_file(folder / "b.tar"));
}

TEST_F(ShardWriterTest, UncommittedShardLeavesNothing) {
  { ShardWriter(folder / "a.tar").add("k.json", "{}"); }
  EXPECT_TRUE(fs::is_empty(folder));
}

TEST_F(ShardWriterTest, RefusesNamesThatLeaveTheFolder) {
  ShardWriter writer(folder / "a.tar");
  for (std::string_view name : {"", "/etc/passwd", "../k.json", "a/../../k.json", "a/..", "folder/"})
    EXPECT_THROW(writer.add(name, "{}"), Error) << "'" << name << "'";
  EXPECT_THROW(writer.add(std::string_view("a\0b", 3), "{}"), Error);
  EXPECT_NO_THROW(writer.add("a..b/...json", "{}"));
}
