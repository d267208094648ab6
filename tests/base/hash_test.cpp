#include "base/hash.h"

#include <gtest/gtest.h>

#include <vector>

using namespace fvlm;

TEST(Sha256, MatchesPublishedVectors) {
  EXPECT_EQ(sha256_hex(""), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  EXPECT_EQ(sha256_hex("abc"), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  EXPECT_EQ(sha256_hex("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq"),
            "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
  EXPECT_EQ(sha256_hex(std::string(1'000'000, 'a')),
            "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
}

TEST(Sha256, DoesNotDependOnChunking) {
  std::string bytes(1000, 'x');
  Sha256 pieces;
  for (size_t at = 0; at < bytes.size(); at += 37) pieces.update(std::string_view(bytes).substr(at, 37));
  EXPECT_EQ(pieces.hex(), sha256_hex(bytes));
}

namespace {

uint64_t counting(size_t length, size_t piece) {
  std::vector<std::byte> bytes(length);
  for (size_t i = 0; i < length; ++i) bytes[i] = static_cast<std::byte>(i % 251);
  Xxh64 hash;
  for (std::span<const std::byte> rest = bytes; !rest.empty(); rest = rest.subspan(std::min(piece, rest.size())))
    hash.update(rest.first(std::min(piece, rest.size())));
  return hash.value();
}

} // namespace

TEST(Xxh64, EqualsXxhashLibrary) {
  EXPECT_EQ(xxh64(""), 0xef46db3751d8e999);
  EXPECT_EQ(xxh64("a"), 0xd24ec4f1a98c6e5b);
  EXPECT_EQ(xxh64("abc"), 0x44bc2cf5ad770999);
  EXPECT_EQ(counting(31, 31), 0xc346d2b59b4d8ee1);
  EXPECT_EQ(counting(32, 32), 0xcbf59c5116ff32b4);
  EXPECT_EQ(counting(33, 33), 0x0c535d1acafb8ead);
  EXPECT_EQ(counting(1000, 1000), 0xf306f04aa88b54d3);
}

TEST(Xxh64, DoesNotDependOnChunking) {
  for (size_t piece : {1, 7, 31, 32, 33, 64, 100, 999}) EXPECT_EQ(counting(1000, piece), 0xf306f04aa88b54d3) << piece;
}
