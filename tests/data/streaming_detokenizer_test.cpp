// Streaming detokenization: whole characters, the same total as decode(), and with StopTexts nothing of a stop text.
#include "base/error.h"
#include "base/random.h"
#include "data/stop_texts.h"
#include "data/streaming_detokenizer.h"
#include "small_tokenizer.h"

#include <gmock/gmock.h>

namespace fvlm {
namespace {

using testing::ElementsAre;

const Tokenizer& tokenizer() {
  static const Tokenizer small = Tokenizer::from_json(test::small_tokenizer().dump(), "small");
  return small;
}

// The text that each token adds up to a stop text, then what both held back.
std::vector<std::string> pieces(const std::vector<TokenId>& ids, std::vector<std::string> texts = {}) {
  StreamingDetokenizer stream(tokenizer());
  StopTexts stops(std::move(texts));
  std::vector<std::string> all;
  for (const TokenId id : ids) {
    all.push_back(stops.add(stream.add(id)));
    if (stops.found()) return all;
  }
  const std::string rest = stops.add(stream.finish(), false);
  all.push_back(rest + stops.finish());
  return all;
}

std::string joined(const std::vector<std::string>& all) {
  std::string text;
  for (const auto& piece : all) text += piece;
  return text;
}

TEST(StreamingDetokenizer, EmitsWholeCharactersPerToken) {
  EXPECT_THAT(pieces({257, 'x', 256}), ElementsAre("abc", "x", "ab", ""));
  EXPECT_THAT(pieces({'a', 0xC3, 0xA4, 'b'}), ElementsAre("a", "", "\u00e4", "b", ""));
  EXPECT_THAT(pieces({0xF0, 0x9F, 0x98, 0x80}), ElementsAre("", "", "", "\U0001F600", ""));
  EXPECT_THAT(pieces({'a', 0xE2, 0x82}), ElementsAre("a", "", "", "\uFFFD")) << "half a character at the end";
  EXPECT_THAT(pieces({0xFF, 'a'}), ElementsAre("", "\uFFFDa", "")) << "it might have been a character's first byte";
}

TEST(StreamingDetokenizer, SkipsSpecialTokensAndMarksUnknownOnes) {
  EXPECT_THAT(pieces({'a', 259, 'b', 260}), ElementsAre("a", "", "b", "", ""));
  EXPECT_THAT(pieces({'a', 5000, -1}), ElementsAre("a", "\uFFFD", "\uFFFD", ""));
}

TEST(StreamingDetokenizer, StopsAtTheFirstStopText) {
  EXPECT_THAT(pieces({'x', 'y', '\n', 'z'}, {"\n"}), ElementsAre("x", "y", ""));
  EXPECT_THAT(pieces({'x', 256, 'c', 'd'}, {"bcd", "q"}), ElementsAre("x", "a", "", ""));
  EXPECT_THAT(pieces({'x', 257, 'y'}, {"b"}), ElementsAre("x", "a")) << "inside a token";
  EXPECT_THAT(pieces({'b', 'b', 'c', '.'}, {"bc."}), ElementsAre("", "b", "", ""));
  EXPECT_THAT(pieces({'b', 'c', '!'}, {"bc."}), ElementsAre("", "", "bc!", "")) << "it was none";
  EXPECT_THAT(pieces({'b', 'c'}, {"bc."}), ElementsAre("", "", "bc"));
  EXPECT_THAT(pieces({'a', '.', 'b'}, {"b", "."}), ElementsAre("a", ""));
  EXPECT_THROW(StopTexts({"x", ""}), Error);
}

TEST(StreamingDetokenizer, AStopTextThatEndsTooEarlyIsText) {
  const auto after = [](size_t least, const std::vector<TokenId>& ids, std::vector<std::string> texts) {
    StreamingDetokenizer stream(tokenizer());
    StopTexts stops(std::move(texts));
    std::string text;
    for (size_t i = 0; i < ids.size() && !stops.found(); ++i) text += stops.add(stream.add(ids[i]), i >= least);
    if (stops.found()) return text + "|";
    text += stops.add(stream.finish(), false);
    return text + stops.finish();
  };
  EXPECT_EQ(after(2, {'x', 'y', 'x', 'y', 'z'}, {"xy"}), "xy|");
  EXPECT_EQ(after(2, {'a', 'x', 'y', 'z'}, {"xy"}), "a|") << "it ends in the third token";
  EXPECT_EQ(after(3, {'a', 'x', 'y', 'z'}, {"xy"}), "axyz");
  EXPECT_EQ(after(2, {'a', 'a', 'b'}, {"aa"}), "aab");
  EXPECT_EQ(after(2, {'a', 'a', 'a'}, {"aa"}), "a|") << "its second letter and the third";
}

TEST(StreamingDetokenizer, TotalEqualsDecodeUpToTheStop) {
  const RandomStream random(5, "tokens");
  for (uint64_t round = 0; round < 200; ++round) {
    std::vector<TokenId> ids;
    for (uint64_t i = 0; i < 40; ++i) {
      const uint32_t draw = random.bits(round * 64 + i);
      ids.push_back(static_cast<TokenId>(draw % 3 == 0 ? (draw >> 8) % 261 : 'a' + (draw >> 8) % 4));
    }
    const std::string whole = tokenizer().decode(ids, true);
    EXPECT_EQ(joined(pieces(ids)), whole) << "round " << round;
    for (const std::string stop : {"abc", "da", "cccc"})
      EXPECT_EQ(joined(pieces(ids, {stop})), whole.substr(0, whole.find(stop))) << "round " << round << ", " << stop;
  }
}

} // namespace
} // namespace fvlm
