#include "base/error.h"
#include "base/hash.h"
#include "data/shards/shard_writer.h"
#include "data/shards/tar_scan.h"
#include "tar_maker.h"

#include <gmock/gmock.h>

using namespace fvlm;
using namespace fvlm::test;
using testing::ElementsAre;
using testing::HasSubstr;

namespace {

struct Found {
  std::vector<std::string> good;  // "name=content"
  std::vector<std::string> wrong; // "offset name: reason"
};

// Short enough to be printed.
std::string brief(const std::string& content) {
  return content.size() <= 20 ? content : fmt::format("{} bytes {:x}", content.size(), xxh64(content));
}

Found scan(std::string_view tar) {
  static const Folder folder; // one file, written again and again
  write_bytes(folder / "a.tar", tar);
  RetryingFile file(folder / "a.tar", {});
  Found found;
  scan_tar(file, [&](TarEntry&& item) {
    if (!item.wrong.empty()) {
      found.wrong.push_back(fmt::format("{} {}: {}", item.header, item.name, item.wrong));
      return;
    }
    std::string content(item.size, '\0');
    file.read(item.offset, std::as_writable_bytes(std::span(content)));
    found.good.push_back(fmt::format("{}={}", item.name, brief(content)));
  });
  return found;
}

// Three samples of two members each.
struct Example {
  TarMaker tar;
  std::vector<size_t> headers, sizes;
  std::vector<std::string> good;
  Example() {
    for (int i = 0; i < 3; ++i) {
      add(fmt::format("{:03}.jpg", i), std::string(700 + 600 * i, static_cast<char>('a' + i)));
      add(fmt::format("{:03}.json", i), fmt::format("{{\"caption\":\"{}\"}}", i));
    }
  }
  void add(const std::string& name, const std::string& content) {
    headers.push_back(tar.file(name, content));
    good.push_back(name + "=" + brief(content));
    sizes.push_back(content.size());
  }
  std::vector<std::string> without(size_t member) const {
    auto rest = good;
    rest.erase(rest.begin() + static_cast<ptrdiff_t>(member));
    return rest;
  }
};

} // namespace

TEST(TarScan, ReadsNamesAndSizesOfEveryForm) {
  TarMaker tar;
  std::string folder(120, 'f'), name = std::string(150, 'n') + ".txt";
  tar.file("plain.txt", "1");
  tar.file("./here.txt", "2");
  tar.header("split.txt", TarMaker::octal(1), '0', std::string_view("ustar\00000", 8), folder);
  tar.data("3");
  tar.header("old.txt", TarMaker::octal(1), '\0', {});
  tar.data("4");
  tar.file("././@LongLink", folder + "/" + name + '\0', 'L');
  tar.header(folder.substr(0, 100), TarMaker::octal(1), '0', std::string_view("ustar  \0", 8));
  tar.data("5");
  std::string path = "path=pax/" + name + "\n", size = "10 size=1\n";
  tar.file("pax", fmt::format("{} {}{}", path.size() + 4, path, size), 'x');
  tar.header("short.txt", TarMaker::octal(77777), '0');
  tar.data("6");
  tar.header("binary.txt", TarMaker::base256(1));
  tar.data("7");
  tar.header("padded.txt", "         1 \0");
  tar.data("8");
  tar.file("folder/", "", '5');
  tar.file("global", "18 comment=global\n", 'g');
  Found found = scan(tar.end());
  EXPECT_THAT(found.good,
              ElementsAre("plain.txt=1", "here.txt=2", folder + "/split.txt=3", "old.txt=4", folder + "/" + name + "=5",
                          "pax/" + name + "=6", "binary.txt=7", "padded.txt=8"));
  EXPECT_THAT(found.wrong, ElementsAre());
}

TEST(TarScan, ReadsThreeFormatsOfPython) {
  Folder folder;
  write_bytes(folder / "make.py", R"(
import io, sys, tarfile
for name, form in ("ustar", tarfile.USTAR_FORMAT), ("gnu", tarfile.GNU_FORMAT), ("pax", tarfile.PAX_FORMAT):
    with tarfile.open(f"{sys.argv[1]}/{name}.tar", "w", format=form) as tar:
        for i, length in enumerate((3, 97, 98, 100, 104, 140, 190)):
            info = tarfile.TarInfo("f" * (length // 2) + "/" + "n" * (length // 2) + ".txt")
            info.size = i * 300
            tar.addfile(info, io.BytesIO(bytes([65 + i]) * info.size))
)");
  ASSERT_EQ(std::system(fmt::format("python3 {0}/make.py {0}", folder.path().string()).c_str()), 0);
  std::vector<std::string> expected;
  for (int i = 0; int length : {3, 97, 98, 100, 104, 140, 190})
    expected.push_back(fmt::format("{}/{}.txt={}", std::string(length / 2, 'f'), std::string(length / 2, 'n'),
                                   brief(std::string(i * 300, static_cast<char>('A' + i))))),
        ++i;
  for (const char* form : {"ustar", "gnu", "pax"}) {
    Found found = scan(read_file(folder / fmt::format("{}.tar", form)));
    EXPECT_EQ(found.good, expected) << form;
    EXPECT_THAT(found.wrong, ElementsAre()) << form;
  }
}

TEST(TarScan, ReportsAndNeverFollowsSpecialFiles) {
  TarMaker tar;
  for (char type : {'1', '2', '3', '4', '6'}) tar.file(fmt::format("a.{}", type), "", type);
  tar.file("/etc/passwd", "x");
  tar.file("../up.txt", "x");
  tar.file("a/../../up.txt", "x");
  tar.file(std::string_view("a\nb.txt"), "x");
  tar.file("\xff.txt", "x");
  tar.file("sparse.txt", "x", 'S');
  tar.file("odd.txt", "x", 'Q');
  tar.file("good.txt", "x");
  Found found = scan(tar.end());
  EXPECT_THAT(found.good, ElementsAre("good.txt=x"));
  EXPECT_THAT(found.wrong,
              ElementsAre(HasSubstr("hard link"), HasSubstr("symbolic link"), HasSubstr("a device"),
                          HasSubstr("a device"), HasSubstr("a pipe"), HasSubstr("'/etc/passwd' is absolute"),
                          HasSubstr("leads out"), HasSubstr("leads out"), HasSubstr("no text"), HasSubstr("no text"),
                          HasSubstr("sparse"), HasSubstr("no regular file")));
}

TEST(TarScan, FlippedHeaderBitCostsNoOtherMember) {
  const Example example;
  const std::string whole = example.tar.end();
  ASSERT_EQ(scan(whole).good, example.good);
  for (size_t member = 0; member < example.headers.size(); ++member)
    for (size_t byte = 0; byte < 512; byte += byte < 360 ? 1 : 17) {
      std::string tar = whole;
      tar[example.headers[member] + byte] ^= 4;
      Found found = scan(tar);
      if (found.good == example.good && byte >= 148 && byte < 156) continue; // the filling of the checksum's field
      ASSERT_EQ(found.good, example.without(member)) << "member " << member << " byte " << byte;
      ASSERT_EQ(found.wrong.size(), 1) << "member " << member << " byte " << byte;
      ASSERT_THAT(found.wrong[0], HasSubstr(fmt::format("{} ", example.headers[member])));
    }
}

TEST(TarScan, WrongSizeCostsNoOtherMember) {
  const Example example;
  const std::string whole = example.tar.end();
  size_t noticed = 0;
  std::vector<std::string> sizes = {TarMaker::octal(0),
                                    TarMaker::octal(1),
                                    TarMaker::octal(100),
                                    TarMaker::octal(4000),
                                    TarMaker::octal(100000),
                                    "77777777777",
                                    TarMaker::base256(uint64_t{1} << 62),
                                    TarMaker::base256(uint64_t{1} << 63),
                                    TarMaker::base256(~uint64_t{0}),
                                    TarMaker::base256(~uint64_t{0} - 511, '\xff'),
                                    "\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff",
                                    "-0000000001",
                                    "abc"};
  for (size_t member = 0; member < example.headers.size(); ++member)
    for (const auto& size : sizes) {
      std::string tar = whole;
      std::memset(tar.data() + example.headers[member] + 124, 0, 12);
      std::memcpy(tar.data() + example.headers[member] + 124, size.data(), size.size());
      seal(tar, example.headers[member]);
      if (tar == whole) continue;
      Found found = scan(tar);
      // A wrong size that ends in the same block as the correct one, or on a later header, is undetectable.
      if (found.wrong.empty()) continue;
      ++noticed;
      // A size that is too small truncates the member, which its own format detects.
      auto good = found.good;
      if (good.size() == example.good.size()) good.erase(good.begin() + static_cast<ptrdiff_t>(member));
      EXPECT_EQ(good, example.without(member)) << "member " << member << " size " << size;
      EXPECT_EQ(found.wrong.size(), 1) << "member " << member << " size " << size;
    }
  EXPECT_GE(noticed, 62) << "of " << example.headers.size() * sizes.size();
}

TEST(TarScan, TruncatedArchiveGivesItsBeginning) {
  const Example example;
  const std::string whole = example.tar.end();
  for (size_t size = 0; size < whole.size() - 1024; size += 97) {
    Found found = scan(std::string_view(whole).substr(0, size));
    size_t complete = 0; // members whose data are there
    for (size_t i = 0; i < example.good.size(); ++i) {
      complete += example.headers[i] + 512 + example.sizes[i] <= size;
    }
    ASSERT_EQ(found.good.size(), complete) << size << " bytes of " << whole.size();
    ASSERT_FALSE(found.wrong.empty()) << size;
    ASSERT_THAT(found.wrong.back(), HasSubstr("cut short")) << size;
  }
}

TEST(TarScan, LostSectorCostsNoOtherMember) {
  const Example example;
  for (size_t member = 0; member < example.headers.size(); ++member)
    for (char content : {'\0', 'x', '7'}) {
      std::string tar = example.tar.end();
      std::memset(tar.data() + example.headers[member], content, 512);
      EXPECT_EQ(scan(tar).good, example.without(member)) << "header " << member << " of " << content;
    }
}

TEST(TarScan, ReportsZerosBetweenMembersAndReadsConcatenatedArchives) {
  Example example;
  std::string twice = example.tar.end() + TarMaker(example.tar).end();
  Found found = scan(twice);
  EXPECT_EQ(found.good.size(), 12);
  EXPECT_THAT(found.wrong, ElementsAre(HasSubstr("2 blocks of zeros where a header should be")));
}

TEST(TarScan, MemberWhoseLongNameIsLostGetsNoShorterOne) {
  for (char type : {'L', 'x'}) {
    TarMaker tar;
    tar.file("first.txt", "1");
    std::string name = std::string(130, 'n') + ".txt", path = "path=" + name + "\n";
    size_t record = tar.file("record", type == 'L' ? name + '\0' : fmt::format("{} {}", path.size() + 4, path), type);
    tar.file(name.substr(0, 100), "2");
    tar.file("third.txt", "3");
    std::string good = tar.end();
    EXPECT_THAT(scan(good).good, ElementsAre("first.txt=1", name + "=2", "third.txt=3"));
    for (size_t at : {record + 10, record + 512}) {    // its header, its content
      if (type == 'L' && at == record + 512) continue; // another letter in a name is another name
      std::string bad = good;
      bad[at] ^= 8;
      Found found = scan(bad);
      EXPECT_THAT(found.good, ElementsAre("first.txt=1", "third.txt=3")) << type << at - record;
      EXPECT_FALSE(found.wrong.empty());
    }
  }
}

TEST(TarScan, SearchAfterDamageTakesLinearTime) {
  TarMaker tar; // 20,000 headers, each of which says that garbage at the end follows it
  constexpr size_t members = 20'000;
  for (size_t i = 0; i < members; ++i) tar.header(fmt::format("{}.txt", i), TarMaker::octal((members - i) * 512 - 512));
  tar.data(std::string(512, 'x'));
  Folder folder;
  write_bytes(folder / "a.tar", tar.end());
  RetryingFile file(folder / "a.tar", {});
  size_t given = 0;
  scan_tar(file, [&](TarEntry&&) { ++given; });
  EXPECT_GE(given, members);
}
