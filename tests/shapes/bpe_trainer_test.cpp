// BpeTrainer, also against the trainer of the Hugging Face tokenizers package.
#include "base/error.h"
#include "base/file.h"
#include "data/chat.h"
#include "data/unicode.h"
#include "make-shapes/bpe_trainer.h"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cstdlib>
#include <unistd.h>

using namespace fvlm;
using fvlm::shapes::BpeTrainer;
namespace fs = std::filesystem;

namespace {

// Words of few letters, so that counts are often equal and tokens come about in more than one way.
std::vector<std::string> texts(int count) {
  uint64_t state = 7;
  auto draw = [&](uint64_t below) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (state >> 33) % below;
  };
  const std::vector<std::string> syllables{"a",   "b", "ab", "ba", "abc", "cab", "é", "ss",
                                           "sss", "1", "42", "'s", ", ",  "?",   "\n"};
  std::vector<std::string> all;
  for (int i = 0; i < count; ++i) {
    std::string text;
    for (uint64_t n = 3 + draw(20); n > 0; --n) {
      for (uint64_t parts = 1 + draw(4); parts > 0; --parts) text += syllables[draw(syllables.size())];
      text += " ";
    }
    all.push_back(text);
  }
  for (const char* english : {"a red circle moves left", "a blue square moves right, then up",
                              "which colour came first?", "what is 12 + 30? It's 42.", "Größe 紅色 \xff <|im_end|>"})
    all.insert(all.end(), 7, english);
  return all;
}

std::string trained(const std::vector<std::string>& texts, size_t max_vocabulary = 49152) {
  BpeTrainer trainer;
  for (const auto& text : texts) trainer.add(text);
  return trainer.tokenizer_json(max_vocabulary);
}

} // namespace

TEST(BpeTrainer, EveryFrequentWordBecomesOneToken) {
  auto json = trained({"red red blue", "a red circle"});
  Tokenizer tokenizer = Tokenizer::from_json(json, "trained");
  auto ids = tokenizer.encode("red red circle");
  EXPECT_EQ(ids.size(), 3u) << tokenizer.size() << " tokens";
  EXPECT_EQ(tokenizer.decode(ids), "red red circle");
  EXPECT_EQ(tokenizer.decode(tokenizer.encode("größer 紅")), "größer 紅") << "bytes stand for what it never saw";
  EXPECT_EQ(tokenizer.special_id("<|endoftext|>"), 0);
  EXPECT_EQ(tokenizer.special_id("<|im_end|>"), 2);
  EXPECT_NO_THROW(ChatTemplate{tokenizer});
}

TEST(BpeTrainer, OrderOfTextsDoesNotMatter) {
  auto one = texts(50), other = one;
  std::reverse(other.begin(), other.end());
  EXPECT_EQ(trained(one, 400), trained(other, 400));
}

TEST(BpeTrainer, LimitsTheVocabulary) {
  auto tokens = [](size_t max_vocabulary) {
    return nlohmann::json::parse(trained({"aaab aaab", "zx"}, max_vocabulary))["model"]["vocab"].size();
  };
  EXPECT_EQ(tokens(261), 261u);
  EXPECT_EQ(tokens(1000), 259u + 5) << "aa, ab, aaab, that behind a space, zx";
  EXPECT_EQ(tokens(259), 259u);
  EXPECT_THROW(tokens(258), Error);
}

TEST(BpeTrainer, MatchesTheFileOfTheWheel) {
  fs::path folder = fs::temp_directory_path() / fmt::format("fvlm-bpe-trainer-{}", getpid());
  fs::create_directories(folder);
  auto all = texts(400);
  for (auto& text : all) text = ValidUtf8(text).view();
  write_file_atomic(folder / "texts.json", nlohmann::json(all).dump());
  for (size_t vocabulary : {300, 500, 20000}) {
    write_file_atomic(folder / "ours.json", trained(all, vocabulary));
    auto command = fmt::format("{} {} {} {}", FVLM_PYTHON, FVLM_TRAINER_ORACLE, folder.string(), vocabulary);
    EXPECT_EQ(std::system(command.c_str()), 0) << command;
    Tokenizer tokenizer = Tokenizer::from_file(folder / "ours.json");
    auto expected = nlohmann::json::parse(read_file(folder / "ids.json"));
    for (size_t i = 0; i < all.size(); ++i)
      ASSERT_EQ(nlohmann::json(tokenizer.encode(all[i])), expected[i]) << vocabulary << " tokens: '" << all[i] << "'";
  }
  fs::remove_all(folder);
}
