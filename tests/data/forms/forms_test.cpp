// The forms that data lie in: each gives the same samples, and says where a broken one stands.
#include "base/base64.h"
#include "data/convert.h"
#include "data/parquet/encoding.h"
#include "data/parquet/page_cache.h"
#include "data/shards/shard_set.h"
#include "made_forms.h"

#include <gmock/gmock.h>
#include <optional>
#include <set>

namespace fvlm::test {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

ShardOptions cached_in(const Folder& folder) {
  return {.cache = folder / "cache", .index_beside = false, .threads = 1};
}

std::vector<uint64_t> digests(const ShardSet& set, std::vector<std::string>* reasons = nullptr) {
  std::vector<uint64_t> all;
  for (int64_t i = 0; i < set.size(); ++i) {
    const auto place = set.locate(i);
    std::string reason;
    all.push_back(digest_of(*set.shard(place), place.sample, reason));
    if (reasons && all.back() == 0) reasons->push_back(reason);
  }
  return all;
}

std::vector<uint64_t> expected_digests() {
  const Folder folder;
  return digests(ShardSet({write_form("jsonl", folder.path()).string()}, cached_in(folder)));
}

class EveryForm : public testing::TestWithParam<std::string> {};
INSTANTIATE_TEST_SUITE_P(Forms, EveryForm, testing::ValuesIn(made_forms()), [](const auto& info) {
  std::string name = info.param;
  std::replace(name.begin(), name.end(), '.', '_');
  return name;
});

TEST_P(EveryForm, GivesTheSameSamplesAndSaysWhichAreBroken) {
  const Folder folder;
  const fs::path path = write_form(GetParam(), folder.path());
  const ShardSet set({path.string()}, cached_in(folder));
  std::vector<std::string> reasons;
  const auto all = digests(set, &reasons);
  ASSERT_EQ(all.size(), made_samples);
  EXPECT_EQ(std::count(all.begin(), all.end(), 0U), 2);
  EXPECT_EQ(all, expected_digests());
  ASSERT_EQ(reasons.size(), 2);
  EXPECT_THAT(reasons[0], HasSubstr("broken PNG"));
  EXPECT_THAT(reasons[1], HasSubstr("empty"));
}

TEST_P(EveryForm, ConvertsToTarsOfTheSameSamples) {
  const Folder folder;
  plan::Source source;
  source.shards = {write_form(GetParam(), folder.path()).string()};
  const Converted done =
      convert(source, (folder / "out/a-%03d.tar").string(), 20 << 10, cached_in(folder), [](int64_t, int64_t) {});
  EXPECT_EQ(done.samples, made_samples);
  EXPECT_EQ(done.broken, 0) << "what is in the files is looked at by those who read them";
  EXPECT_GT(done.shards, 1);
  const ShardSet set({(folder / "out/a-*.tar").string()}, cached_in(folder));
  EXPECT_EQ(digests(set), expected_digests());
}

struct OneFile {
  Folder folder;
  fs::path path;
  OneFile(const std::string& name, const std::string& text) : path(folder / name) {
    write_bytes(path, text);
    write_bytes(folder / "a.png", write_png(plain_image(4, 4, 1, 2, 3)));
  }
  std::shared_ptr<const Shard> open(const fs::path& root = {}) const {
    return Shard::open(path, {.cache = folder / "cache", .root = root, .index_beside = false});
  }
  std::string refusal(int64_t i = 0) const {
    std::string reason;
    EXPECT_EQ(digest_of(*open(), i, reason), 0);
    return reason;
  }
  Sample sample(int64_t i = 0, const Wanted& wanted = {}) const {
    const auto shard = open();
    return SampleReader(wanted.mix, byte_tokenizer(), 4, nullptr).measure(*shard, shard->sample(i), wanted.source);
  }
};

TEST(JsonLines, ConvertWithImagesAndVideosAlone) {
  const Folder folder;
  write_bytes(folder / "key", "-----BEGIN PRIVATE KEY-----");
  write_bytes(folder / "film", std::string("\0\0\0\x18"
                                           "ftypisom",
                                           12));
  write_bytes(folder / "a.jsonl", fmt::format("{{\"image\": \"{0}\", \"caption\": \"x\"}}\n"
                                              "{{\"video\": \"{0}\", \"caption\": \"x\"}}\n"
                                              "{{\"video\": \"film\", \"caption\": \"x\"}}\n",
                                              (folder / "key").string()));
  plan::Source source;
  source.shards = {(folder / "a.jsonl").string()};
  const fs::path out = folder / "out-%d.tar";
  const Converted done = convert(source, out.string(), 1 << 20, cached_in(folder), [](int64_t, int64_t) {});
  EXPECT_EQ(done.samples, 3);
  EXPECT_EQ(done.broken, 2);
  ASSERT_EQ(done.reasons.size(), 2);
  EXPECT_THAT(done.reasons[0], AllOf(HasSubstr("line 1"), HasSubstr("not an image")));
  EXPECT_THAT(done.reasons[1], AllOf(HasSubstr("line 2"), HasSubstr("not a video")));
  const std::string shard = read_file(folder / "out-0.tar");
  EXPECT_THAT(shard, AllOf(Not(HasSubstr("PRIVATE")), HasSubstr("ftypisom")));
}

Converted converted(const Folder& folder, const std::string& from, const std::string& out) {
  plan::Source source;
  source.shards = {(folder / from).string()};
  return convert(source, (folder / out).string(), 1 << 20, cached_in(folder), [](int64_t, int64_t) {});
}

TEST(JsonLines, ConvertMovesImagesOutOfTheTexts) {
  const Folder folder;
  const std::string image = encode_base64(write_png(plain_image(4, 4, 1, 2, 3)));
  write_bytes(folder / "a.jsonl",
              fmt::format("{{\"image\": \"data:image/png;base64,{0}\", \"user\": \"data: 3, 5, 8. Plot?\", "
                          "\"assistant\": \"data: 1\"}}\n"
                          "{{\"image\": {{\"bytes\": \"{0}\"}}, \"user\": \"Q\", \"assistant\": \"A\"}}\n",
                          image));
  EXPECT_EQ(converted(folder, "a.jsonl", "out-%d.tar").broken, 0);
  EXPECT_THAT(read_file(folder / "out-0.tar"), Not(HasSubstr(image)));
  const ShardSet lines({(folder / "a.jsonl").string()}, cached_in(folder)),
      tars({(folder / "out-0.tar").string()}, cached_in(folder));
  const auto all = digests(tars);
  EXPECT_EQ(all, digests(lines)) << "the same texts and frames";
  EXPECT_EQ(std::ranges::count(all, 0U), 0);
  const auto shard = tars.shard(0);
  EXPECT_EQ(shard->json(shard->sample(0))->at("user"), "data: 3, 5, 8. Plot?");
}

TEST(Convert, ReplacesNoShard) {
  const Folder folder;
  write_bytes(folder / "a.jsonl", "{\"caption\": \"x\", \"frame_count\": 0}\n");
  converted(folder, "a.jsonl", "out/x-%03d.tar");
  fs::rename(folder / "out/x-000.tar", folder / "out/x-007.tar");
  const std::string before = read_file(folder / "out/x-007.tar");
  for (const char* from : {"a.jsonl", "out/x-*.tar"}) try {
      converted(folder, from, "out/x-%03d.tar");
      ADD_FAILURE() << from << " was converted";
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::output);
      EXPECT_THAT(error.text(), HasSubstr("out/x-007.tar: a shard of this name already exists"));
    }
  EXPECT_EQ(read_file(folder / "out/x-007.tar"), before);
  EXPECT_FALSE(fs::exists(folder / "out/x-000.tar"));
  converted(folder, "out/x-*.tar", "out/y-%03d.tar");
  EXPECT_TRUE(fs::exists(folder / "out/y-000.tar"));
}

TEST(Parquet, DecodedPagesOfAllFilesStayBelowALimit) {
  const Folder folder;
  std::vector<std::string> files;
  for (const char* name : {"a", "b", "c", "d"}) files.push_back(write_form("parquet", folder / name).string());
  auto& cache = parquet::PageCache::of_process();
  const uint64_t before = cache.bytes(), usual = cache.set_limit(uint64_t{1} << 30);
  std::optional<ShardSet> set(std::in_place, files, cached_in(folder));
  const auto all = digests(*set);
  const uint64_t unlimited = cache.bytes() - before, limit = before + unlimited / 3;
  EXPECT_GT(unlimited, 0U);
  cache.set_limit(limit);
  for (int64_t i = 0; i < set->size(); ++i) {
    const int64_t number = i * 37 % set->size();
    const auto place = set->locate(number);
    std::string reason;
    EXPECT_EQ(digest_of(*set->shard(place), place.sample, reason), all[static_cast<size_t>(number)]);
    EXPECT_LE(cache.bytes(), limit);
    EXPECT_GT(cache.bytes(), before);
  }
  set.reset();
  EXPECT_EQ(cache.bytes(), before) << "of files that were closed";
  cache.set_limit(usual);
}

// Of nulls alone, of which Parquet's second version of pages may have nothing, or that compressed.
TEST(Parquet, NothingDecompressesToNothing) {
  for (const auto codec : {parquet::Codec::snappy, parquet::Codec::gzip, parquet::Codec::zstd}) {
    EXPECT_TRUE(parquet::decompress(codec, {}, 0).empty());
    EXPECT_TRUE(parquet::decompress(codec, std::as_bytes(std::span("\x1f\x8b", 2)), 0).empty());
    EXPECT_THROW(parquet::decompress(codec, {}, 1), Error);
  }
}

TEST(JsonLines, SayWhichLineIsBroken) {
  const OneFile file(
      "a.jsonl",
      "\xef\xbb\xbf{\"caption\": \"one\"}\n\n  \r\n{\"caption\": }\n[1]\n{\"image\": \"b.png\", \"caption\": \"x\"}\n"
      "{\"image\": \"http://a/b.png\", \"caption\": \"x\"}\n{\"images\": [\"a.png\", 3], \"caption\": \"x\"}\n"
      "{\"caption\": \"no end of line\"}");
  EXPECT_EQ(file.open()->size(), 7);
  EXPECT_EQ(reported(file.sample(0).texts[0]), reported(file.sample(0).texts[0]));
  EXPECT_THAT(file.refusal(1), AllOf(HasSubstr("a.jsonl: line 4"), HasSubstr("its JSON")));
  EXPECT_THAT(file.refusal(2), AllOf(HasSubstr("line 5"), HasSubstr("an object was expected")));
  EXPECT_THAT(file.refusal(3), AllOf(HasSubstr("line 6"), HasSubstr("b.png: No such file"), HasSubstr("`root`")));
  EXPECT_THAT(file.refusal(4), AllOf(HasSubstr("line 7"), HasSubstr("http://a/b.png"), HasSubstr("download it")));
  EXPECT_THAT(file.refusal(5), AllOf(HasSubstr("line 8"), HasSubstr("'images/1' is a number")));
  EXPECT_THAT(reported(file.sample(6).texts[0]), HasSubstr("no end of line"));
}

TEST(JsonLines, FindMediaBelowTheRootAndInDataUrls) {
  const OneFile file("a.jsonl", "{\"image\": \"a.png\", \"caption\": \"x\"}\n");
  fs::create_directories(file.folder / "deep");
  fs::rename(file.folder / "a.png", file.folder / "deep/a.png");
  std::string reason;
  EXPECT_EQ(digest_of(*file.open(), 0, reason), 0);
  EXPECT_NE(digest_of(*file.open(file.folder / "deep"), 0, reason), 0) << reason;

  const OneFile inside(
      "b.jsonl",
      R"({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:image/gif;base64,)"
      R"(R0lGODlhAQABAIAAAAUEBAAAACwAAAAAAQABAAACAkQBADs="}}, {"type": "text", "text": "?"}]}, {"role": "assistant", "content": "!"}]})");
  EXPECT_EQ(inside.sample().frames, 1);
  EXPECT_NE(digest_of(*inside.open(), 0, reason), 0) << reason;
}

TEST(JsonLines, PairsOfChosenAndRejected) {
  const OneFile file(
      "a.jsonl",
      "{\"prompt\": \"Q\", \"chosen\": \"yes\", \"rejected\": \"no\"}\n"
      "{\"prompt\": [{\"role\": \"user\", \"content\": \"Q\"}], \"chosen\": [{\"role\": \"assistant\", \"content\": "
      "\"yes\"}],"
      " \"rejected\": [{\"role\": \"assistant\", \"content\": \"no\"}]}\n"
      "{\"chosen\": [{\"role\": \"user\", \"content\": \"Q\"}, {\"role\": \"assistant\", \"content\": \"yes\"}],"
      " \"rejected\": [{\"role\": \"user\", \"content\": \"Q\"}, {\"role\": \"assistant\", \"content\": \"no\"}]}\n"
      "{\"conversations\": [{\"from\": \"human\", \"value\": \"Q\"}], \"chosen\": {\"from\": \"gpt\", \"value\": "
      "\"yes\"},"
      " \"rejected\": {\"from\": \"gpt\", \"value\": \"no\"}}\n"
      "{\"user\": \"Q\", \"chosen_assistant\": \"yes\", \"rejected_assistant\": \"no\"}\n");
  for (int64_t i = 0; i < 5; ++i) {
    const Sample sample = file.sample(i);
    ASSERT_EQ(sample.texts.size(), 2) << i;
    EXPECT_EQ(reported(sample.texts[0]), with_system(chat({"Q", "yes"}))) << i;
    EXPECT_EQ(reported(sample.texts[1]), with_system(chat({"Q", "no"}))) << i;
  }
}

TEST(JsonLines, SystemTurnsAndListsOfQuestions) {
  const OneFile file(
      "a.jsonl", "{\"system\": \"Be kind.\", \"conversations\": [{\"from\": \"human\", \"value\": \"Q\"}, {\"from\": "
                 "\"gpt\", \"value\": \"A\"}]}\n"
                 "{\"texts\": [{\"user\": \"Q\", \"assistant\": \"A\"}, {\"user\": \"R\", \"assistant\": \"B\"}]}\n");
  EXPECT_EQ(reported(file.sample(0).texts[0]), with_system(chat({"Q", "A"}), "Be kind."));
  EXPECT_EQ(reported(file.sample(1).texts[0]), with_system(chat({"Q", "A", "R", "B"})));
}

TEST(JsonList, ResumesBehindADamagedItem) {
  const OneFile file(
      "a.json",
      "[\n{\"id\": 1, \"caption\": \"one\"},\n{\"id\": 2, \"caption\": \"two},\n{\"id\": 3, \"caption\": \"three\"},\n"
      "{\"id\": 4, \"caption\": [\"}\"},\n{\"id\": 5, \"caption\": \"five\"}]\n");
  const auto shard = file.open();
  ASSERT_EQ(shard->size(), 5);
  EXPECT_EQ(shard->damages(), 0);
  EXPECT_THAT(file.refusal(1), AllOf(HasSubstr("item 2 (line 3)"), HasSubstr("line break")));
  EXPECT_THAT(file.refusal(3), AllOf(HasSubstr("item 4 (line 5)"), HasSubstr("bracket")));
  for (const int i : {0, 2, 4}) EXPECT_EQ(file.sample(i).texts.size(), 1) << i;
  const OneFile cut("b.json", "[{\"id\": 1, \"caption\": \"one\"},");
  EXPECT_EQ(cut.open()->size(), 1);
  EXPECT_EQ(cut.open()->damages(), 1) << "its end";
}

TEST(FolderOfFiles, PairsImagesWithTextsOfTheSameName) {
  const Folder folder;
  fs::create_directories(folder / "data/sub/.hidden");
  const std::string png = write_png(plain_image(4, 4, 1, 2, 3));
  for (const char* name : {"my.photo.png", "sub/b.png", "c.000.png", "c.001.png", "sub/.hidden/x.png"})
    write_bytes(folder / "data" / name, png);
  for (const char* name : {"my.photo.txt", "sub/b.txt", "c.txt", "README.md", ".DS_Store"})
    write_bytes(folder / "data" / name, "A caption.");
  const auto open = [&] { return Shard::open(folder / "data", {.cache = folder / "cache"}); };
  const auto shard = open();
  ASSERT_EQ(shard->size(), 3);
  EXPECT_EQ(shard->sample(0).key, "c");
  EXPECT_EQ(shard->sample(1).key, "my%2Ephoto");
  EXPECT_EQ(shard->sample(2).key, "sub/b");
  std::string reason;
  for (int64_t i = 0; i < 3; ++i) EXPECT_NE(digest_of(*shard, i, reason), 0) << reason;
  EXPECT_FALSE(fs::exists(folder / "data/.data.fvlm-index")) << "nothing is written there";
  fs::remove(folder / "data/sub/b.png");
  EXPECT_EQ(digest_of(*shard, 2, reason), 0);
  EXPECT_THAT(reason, HasSubstr("sub/b.png: No such file"));
  EXPECT_EQ(digest_of(*open(), 2, reason), 0);
  EXPECT_THAT(reason, HasSubstr("it has no frames"));
}

TEST(FolderOfFiles, KeepsNamesWithDotsApart) {
  const Folder folder;
  const std::vector<std::string> names = {"a%2Eb", "a.b", "a_b"};
  for (const std::string& name : names) {
    write_bytes(folder / (name + ".png"), write_png(plain_image(4, 4, 1, 2, 3)));
    write_bytes(folder / (name + ".txt"), name);
  }
  const auto shard = Shard::open(folder.path(), {.cache = folder / ".cache"});
  ASSERT_EQ(shard->size(), 3);
  std::set<uint64_t> texts;
  std::string reason;
  for (int64_t i = 0; i < 3; ++i) texts.insert(digest_of(*shard, i, reason));
  EXPECT_EQ(texts.size(), 3U);
  EXPECT_EQ(reason, "");
}

TEST(Unpacked, TellsOfLinesThatADamagedFileLost) {
  for (const bool is_gzip : {true, false}) {
    std::string lines;
    for (int i = 0; i < 20000; ++i) lines += fmt::format("{{\"caption\": \"{:x}\"}}\n", xxh64(std::to_string(i)));
    std::string packed = is_gzip ? gzip(lines) : zstandard(lines);
    packed.resize(packed.size() / 2);
    const OneFile file(is_gzip ? "a.jsonl.gz" : "a.jsonl.zst", packed);
    const auto shard = file.open();
    ASSERT_GT(shard->size(), 10) << is_gzip;
    EXPECT_LT(shard->size(), 20000);
    std::string reason;
    EXPECT_NE(digest_of(*shard, 0, reason), 0) << reason;
    EXPECT_EQ(digest_of(*shard, shard->size() - 1, reason), 0);
    EXPECT_THAT(reason, HasSubstr("further lines are lost"));
  }
}

} // namespace
} // namespace fvlm::test
