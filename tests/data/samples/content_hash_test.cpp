#include "data/samples/content_hash.h"
#include "sample_maker.h"

#include <gtest/gtest.h>

namespace fvlm::test {
namespace {

namespace fs = std::filesystem;

// FOLDER/train.jsonl, whose lines name images below FOLDER/images.
void make(const fs::path& folder, int samples) {
  fs::create_directories(folder / "images");
  std::string lines;
  for (int i = 0; i < samples; ++i) {
    lines += fmt::format("{{\"picture\": \"images/{0}.jpg\", \"caption\": \"{0}\"}}\n", i);
    write_bytes(folder / fmt::format("images/{}.jpg", i), fmt::format("pixels of {:06}", i));
  }
  write_bytes(folder / "train.jsonl", lines);
}

uint64_t hash_of(const fs::path& folder, plan::Source source) {
  source.shards = {(folder / "train.jsonl").string()};
  return content_hash(ShardSet(source.shards, {.cache = folder / "cache"}), source);
}

plan::Source with_pictures() {
  plan::Source source;
  source.fields = {{"image", "picture"}};
  return source;
}

} // namespace

TEST(ContentHash, CoversFilesThatJsonNamesAndIsTheSameForACopy) {
  Folder folder;
  make(folder / "here", 40);
  const uint64_t before = hash_of(folder / "here", with_pictures());
  make(folder / "there", 40);
  EXPECT_EQ(hash_of(folder / "there", with_pictures()), before);

  write_bytes(folder / "there/images/17.jpg", "pixels of 999999");
  const uint64_t replaced = hash_of(folder / "there", with_pictures());
  EXPECT_NE(replaced, before) << "an image of the same size";
  fs::remove(folder / "there/images/17.jpg");
  EXPECT_NE(hash_of(folder / "there", with_pictures()), before);
  EXPECT_NE(hash_of(folder / "there", with_pictures()), replaced);

  EXPECT_EQ(hash_of(folder / "here", {}), hash_of(folder / "there", {})) << "without `fields` nothing names them";
}

TEST(ContentHash, OfManySamplesReadsTheFilesOfSome) {
  Folder folder;
  make(folder / "here", 5000);
  const auto hash = [&] { return hash_of(folder / "here", with_pictures()); };
  const uint64_t before = hash();
  for (int i = 0; i < 5000; i += 50) write_bytes(folder / fmt::format("here/images/{}.jpg", i), "pixels of 777777");
  EXPECT_NE(hash(), before) << "one in 50";
}

TEST(ContentHash, WithoutNamedFilesIsThatOfTheShards) {
  Folder folder;
  write_bytes(folder / "train.jsonl", "{\"caption\": \"red\"}\n{\"caption\": \"blue\"}\n");
  const ShardSet shards({(folder / "train.jsonl").string()}, {.cache = folder / "cache"});
  EXPECT_EQ(content_hash(shards, {}), shards.content_hash()) << "so that runs of earlier versions resume";
}

} // namespace fvlm::test
