#include "base/error.h"
#include "base/file.h"
#include "data/chat.h"
#include "data/streaming_detokenizer.h"
#include "data/tokenizer.h"
#include "data/unicode.h"
#include "small_tokenizer.h"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <cstdlib>
#include <cstring>
#include <gmock/gmock.h>
#include <unistd.h>

using namespace fvlm;
using test::small_tokenizer;
namespace fs = std::filesystem;

namespace {

Tokenizer make(const nlohmann::json& file) {
  return Tokenizer::from_json(file.dump(), "tokenizer.json");
}

std::string refusal(const std::string& text) {
  try {
    Tokenizer::from_json(text, "tokenizer.json");
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::data);
    EXPECT_EQ(error.where(), "tokenizer.json");
    return error.what();
  }
  return "accepted";
}

} // namespace

TEST(Tokenizer, MergesLowestRankFirstAndLeftmost) {
  Tokenizer tokenizer = make(small_tokenizer());
  EXPECT_EQ(tokenizer.encode("abc"), (std::vector<TokenId>{257}));
  EXPECT_EQ(tokenizer.encode("bcabc"), (std::vector<TokenId>{258, 257}));
  EXPECT_EQ(tokenizer.encode("12"), (std::vector<TokenId>{'1', '2'}));
}

TEST(Tokenizer, LongWordsMergeLikeShortOnes) {
  Tokenizer tokenizer = make(small_tokenizer());
  std::string word;
  std::vector<TokenId> expected;
  for (int i = 0; i < 500; ++i) {
    word += i % 3 ? "abc" : "bc";
    auto ids = i % 3 ? std::vector<TokenId>{257} : std::vector<TokenId>{258};
    expected.insert(expected.end(), ids.begin(), ids.end());
  }
  EXPECT_EQ(tokenizer.encode(word), expected);
}

TEST(Tokenizer, UserTextNeverBecomesASpecialToken) {
  Tokenizer tokenizer = make(small_tokenizer());
  EXPECT_EQ(tokenizer.encode("<|im_end|>"), (std::vector<TokenId>{260}));
  auto spelled = tokenizer.encode("<|im_end|>", SpecialTokens::as_text);
  EXPECT_EQ(std::count(spelled.begin(), spelled.end(), 260), 0);
  EXPECT_EQ(tokenizer.decode(spelled), "<|im_end|>");
}

TEST(Tokenizer, InvalidUtf8BecomesTheReplacementCharacter) {
  Tokenizer tokenizer = make(small_tokenizer());
  for (const char* text : {"\xff", "a\xc3", "\xe2\x82z", "\xed\xa0\x80", "\xf5\x80", "\xc0\xaf", "\xf0\x9f\x98"}) {
    auto ids = tokenizer.encode(text);
    EXPECT_EQ(tokenizer.decode(ids), ValidUtf8(text).view()) << text;
  }
  EXPECT_EQ(ValidUtf8("\xe2\x82z").view(), "\uFFFDz");
  EXPECT_EQ(ValidUtf8("\xed\xa0\x80").view(), "\uFFFD\uFFFD\uFFFD");
}

TEST(Tokenizer, DecodingAnUnknownIdIsAnError) {
  Tokenizer tokenizer = make(small_tokenizer());
  EXPECT_THROW(tokenizer.decode(std::vector<TokenId>{261}), Error);
  EXPECT_THROW(tokenizer.decode(std::vector<TokenId>{-1}), Error);
}

TEST(Tokenizer, RefusesMalformedFilesWithAReason) {
  struct Case {
    const char* pointer; // JSON pointer of what is replaced
    nlohmann::json value;
    const char* reason;
  };
  const std::vector<Case> cases = {
      {"/model/type", "Unigram", "model type 'Unigram'"},
      {"/model/type", 5, "'model.type' must be a string"},
      {"/model/vocab", nullptr, "'vocab' is missing"},
      {"/model/vocab", nlohmann::json::array(), "'vocab' is missing or no object"},
      {"/model/vocab/abc", -1, "the id -1 of 'abc'"},
      {"/model/vocab/abc", 1e30, "whole number"},
      {"/model/vocab/abc", uint64_t{1} << 63, "is outside"},
      {"/model/vocab/abc", 2'000'000, "far beyond the"},
      {"/model/vocab/abc", "257", "whole number"},
      {"/model/vocab/abc", 256, "stands for"},
      {"/model/merges", nullptr, "'model.merges' is missing"},
      {"/model/merges", {{"a", "b", "c"}}, "merge 0 is no pair"},
      {"/model/merges", {"ab"}, "merge 0 is no pair"},
      {"/model/merges", {"a b c"}, "merge 0 is no pair"},
      {"/model/merges", {7}, "merge 0 is no pair"},
      {"/model/merges", {"a x"}, "names 'ax'"},
      {"/model/merges", {"a b", "a b"}, "stands there twice"},
      {"/model/dropout", 0.1, "model.dropout is not supported"},
      {"/model/byte_fallback", "yes", "must be true or false"},
      {"/model/continuing_subword_prefix", "##", "continuing_subword_prefix is not supported"},
      {"/normalizer", {{"type", "NFKC"}}, "normalizer 'NFKC' is not supported: only NFC, Prepend and Replace are"},
      {"/normalizer", {{"type", "Sequence"}}, "'normalizer.normalizers' must be a list"},
      {"/normalizer",
       {{"type", "Sequence"}, {"normalizers", {{{"type", "NFC"}}, {{"type", "Prepend"}}}}},
       "'prepend' must be a string"},
      {"/normalizer",
       {{"type", "Replace"}, {"pattern", {{"Regex", " "}}}, {"content", "_"}},
       "Replace is supported with a string as its pattern"},
      {"/pre_tokenizer", nullptr, "there is no pre_tokenizer"},
      {"/pre_tokenizer", {{"type", "Whitespace"}}, "pre_tokenizer 'Whitespace' is not supported"},
      {"/pre_tokenizer", {{"type", "Sequence"}}, "must be a list"},
      {"/pre_tokenizer/pretokenizers/0/individual_digits", false, "individual_digits = false"},
      {"/pre_tokenizer/pretokenizers/1/type", "Digits", "individual_digits = false"},
      {"/pre_tokenizer/pretokenizers", nlohmann::json(17, {{"type", "Digits"}, {"individual_digits", true}}),
       "more than 16 pre-tokenizers"},
      {"/pre_tokenizer/pretokenizers/0",
       {{"type", "Split"}, {"pattern", {{"Regex", "\\w+"}}}, {"behavior", "Isolated"}},
       "not one that this engine knows: \\w+"},
      {"/pre_tokenizer/pretokenizers",
       {{{"type", "Split"}, {"pattern", {{"Regex", pattern_text(WordPattern::gpt2)}}}, {"behavior", "Isolated"}},
        {{"type", "ByteLevel"}, {"use_regex", false}}},
       "add_prefix_space behind Split is not supported"},
      {"/decoder", {{"type", "Metaspace"}}, "decoder 'Metaspace' is not supported"},
      {"/decoder", nullptr, "decoder 'null' is not supported"},
      {"/added_tokens", 3, "'added_tokens' must be a list"},
      {"/added_tokens/0", 3, "is no object"},
      {"/added_tokens/0/content", "", "has no content"},
      {"/added_tokens/0/id", -7, "the id -7"},
      {"/added_tokens/0/special", 1, "must be true or false"},
      {"/added_tokens/1/id", 300, "id of added token '<|im_end|>' is 300, and Hugging Face gives it 260"},
      {"/added_tokens/1/content", "abc", "id of added token 'abc' is 260, and Hugging Face gives it 257"},
  };
  for (const Case& bad : cases) {
    auto file = small_tokenizer();
    file[nlohmann::json::json_pointer(bad.pointer)] = bad.value;
    EXPECT_THAT(refusal(file.dump()), testing::HasSubstr(bad.reason)) << bad.pointer << " = " << bad.value.dump();
  }
  EXPECT_THAT(refusal(""), testing::HasSubstr("not valid JSON"));
  EXPECT_THAT(refusal("[1]"), testing::HasSubstr("a JSON object was expected"));
  EXPECT_THAT(refusal(small_tokenizer().dump().substr(0, 900)), testing::HasSubstr("not valid JSON"));
  EXPECT_THAT(refusal(std::string(200'000, '[')), testing::HasSubstr("not valid JSON"));
  EXPECT_THAT(refusal(std::string(200'000, '[') + std::string(200'000, ']')),
              testing::HasSubstr("object was expected"));
}

TEST(Tokenizer, bytes_without_a_token_are_refused) {
  auto file = small_tokenizer();
  file["model"]["unk_token"] = "?";
  EXPECT_EQ(refusal(file.dump()), "accepted");
  file["model"]["vocab"].erase("x");
  file["model"]["vocab"]["no byte"] = 'x';
  EXPECT_THAT(refusal(file.dump()), testing::HasSubstr("the vocabulary lacks byte 0x78, and model.unk_token"));
  file["model"].erase("unk_token");
  file["model"]["byte_fallback"] = true;
  EXPECT_THAT(refusal(file.dump()), testing::HasSubstr("the vocabulary lacks byte 0x78, and model.byte_fallback"));
  file = small_tokenizer();
  file["model"]["byte_fallback"] = true; // which has nothing to do where there is a token for every byte
  EXPECT_EQ(refusal(file.dump()), "accepted");
  file["pre_tokenizer"] = nullptr;
  EXPECT_THAT(refusal(file.dump()), testing::HasSubstr("model.byte_fallback needs the token <0x00>"));
  for (int byte = 0; byte < 256; ++byte) file["model"]["vocab"][fmt::format("<0x{:02X}>", byte)] = 300 + byte;
  file["added_tokens"] = nlohmann::json::array();
  EXPECT_THAT(refusal(file.dump()), testing::HasSubstr("a decoder other than Llama 2's"));
}

namespace {

// Mistral's form: characters, bytes, and a mark in place of each space and before the first word.
nlohmann::json metaspace_tokenizer() {
  nlohmann::json vocabulary{{"<unk>", 0}, {"\u2581", 257}, {"a", 258}, {"\u2581a", 259}};
  for (int byte = 0; byte < 256; ++byte) vocabulary[fmt::format("<0x{:02X}>", byte)] = 1 + byte;
  const nlohmann::json added = {{{"id", 260}, {"content", "<|im_start|>"}, {"special", true}},
                                {{"id", 261}, {"content", "<|im_end|>"}, {"special", true}}};
  return {{"model",
           {{"type", "BPE"},
            {"byte_fallback", true},
            {"unk_token", "<unk>"},
            {"vocab", vocabulary},
            {"merges", {"\u2581 a"}}}},
          {"added_tokens", added},
          {"pre_tokenizer",
           {{"type", "Metaspace"}, {"replacement", "\u2581"}, {"prepend_scheme", "first"}, {"split", false}}},
          {"decoder",
           {{"type", "Sequence"},
            {"decoders",
             {{{"type", "Replace"}, {"pattern", {{"String", "\u2581"}}}, {"content", " "}},
              {{"type", "ByteFallback"}},
              {{"type", "Fuse"}},
              {{"type", "Strip"}, {"content", " "}, {"start", 1}, {"stop", 0}}}}}}};
}

} // namespace

TEST(Tokenizer, AMarkStandsBeforeTheFirstTextAlone) {
  const Tokenizer tokenizer = make(metaspace_tokenizer());
  using Ids = std::vector<TokenId>;
  EXPECT_EQ(tokenizer.encode("a a"), (Ids{259, 259}));
  EXPECT_EQ(tokenizer.encode(" a"), (Ids{259}));
  EXPECT_EQ(tokenizer.encode("a<|im_end|>a"), (Ids{259, 261, 258}));
  EXPECT_EQ(tokenizer.encode("a", SpecialTokens::as_text, TextPlace::inside), (Ids{258}));
  EXPECT_EQ(tokenizer.decode(Ids{259, 259}), "a a");
  Ids behind;
  Tokenizer::Encoder(tokenizer).append_text_with_tokens("a<|im_end|>", {}, 7, behind);
  EXPECT_EQ(behind, (Ids{258, 261}));
  // Of a conversation everything stands behind a token.
  const std::vector<Turn> turns{{"user", "a"}, {"assistant", "a a"}};
  const ChatTokens chat = ChatTemplate(tokenizer).encode(turns, "");
  EXPECT_EQ(tokenizer.decode(chat.ids), "<|im_start|>user\na<|im_end|>\n<|im_start|>assistant\na a<|im_end|>\n");
  EXPECT_EQ(std::count(chat.ids.begin(), chat.ids.end(), 259), 1) << "of the second word of the answer";
}

TEST(Tokenizer, FormsOfMetaspaceAreReadOrRefused) {
  auto file = metaspace_tokenizer();
  auto& pre = file["pre_tokenizer"];
  pre["prepend_scheme"] = "never";
  EXPECT_EQ(make(file).encode("a"), (std::vector<TokenId>{258}));
  file["decoder"]["decoders"].erase(3); // and no Strip
  EXPECT_EQ(make(file).decode(std::vector<TokenId>{259}), " a");
  pre["prepend_scheme"] = "last";
  EXPECT_THAT(refusal(file.dump()), testing::HasSubstr("prepend_scheme 'last' is not supported: always, first"));
  pre = {{"type", "Metaspace"}, {"replacement", "_"}};
  EXPECT_THAT(refusal(file.dump()), testing::HasSubstr("the replacement '\u2581' alone"));
  pre = {{"type", "Sequence"}, {"pretokenizers", {{{"type", "Metaspace"}, {"replacement", "\u2581"}}}}};
  EXPECT_EQ(make(file).encode("a<|im_end|>a"), (std::vector<TokenId>{259, 261, 259})) << "always, by default";
  pre["pretokenizers"].push_back({{"type", "Digits"}, {"individual_digits", true}});
  EXPECT_THAT(refusal(file.dump()), testing::HasSubstr("byte_fallback in its place is not supported"));
}

// Gemma's splits at spaces, of which the normalizer leaves none.
TEST(Tokenizer, ASplitAtSpacesThatAreMarksSplitsNothing) {
  auto file = metaspace_tokenizer();
  const nlohmann::json space = {{"String", " "}};
  file["normalizer"] = {{"type", "Replace"}, {"pattern", space}, {"content", "\u2581"}};
  file["pre_tokenizer"] = {
      {"type", "Split"}, {"pattern", space}, {"behavior", "MergedWithPrevious"}, {"invert", false}};
  file["decoder"]["decoders"].erase(3); // no Strip
  EXPECT_EQ(make(file).encode("a a"), (std::vector<TokenId>{258, 259}));
  EXPECT_EQ(make(file).decode(std::vector<TokenId>{259, 259}), " a a");
  file["pre_tokenizer"]["behavior"] = "Removed";
  EXPECT_THAT(refusal(file.dump()), testing::HasSubstr("byte_fallback in its place is not supported"));
  file["pre_tokenizer"]["behavior"] = "MergedWithPrevious";
  file["normalizer"] = nullptr;
  EXPECT_THAT(refusal(file.dump()), testing::HasSubstr("byte_fallback in its place is not supported"));
}

TEST(Chat, MasksTextAfterTheAssistantLine) {
  Tokenizer tokenizer = make(small_tokenizer());
  ChatTemplate chat(tokenizer);
  std::vector<Turn> turns{{"user", "hi <|im_end|>"}, {"assistant", "abc"}};
  ChatTokens tokens = chat.encode(turns);
  EXPECT_EQ(tokenizer.decode(tokens.ids), "<|im_start|>system\nYou are a helpful AI assistant.<|im_end|>\n"
                                          "<|im_start|>user\nhi <|im_end|><|im_end|>\n"
                                          "<|im_start|>assistant\nabc<|im_end|>\n");
  EXPECT_EQ(std::count(tokens.ids.begin(), tokens.ids.end(), 260), 3) << "the user's look-alike is no token";
  size_t answers = static_cast<size_t>(std::count(tokens.answer_mask.begin(), tokens.answer_mask.end(), 1));
  ASSERT_EQ(tokens.answer_mask.size(), tokens.ids.size());
  EXPECT_EQ(answers, 3u) << "abc, <|im_end|> and the line break";
  EXPECT_EQ(tokens.answer_mask[tokens.ids.size() - 4], 0);
  EXPECT_EQ(tokens.answer_mask[tokens.ids.size() - 3], 1);
  auto prompt = chat.prompt(std::span(turns).first(1));
  EXPECT_TRUE(std::equal(prompt.begin(), prompt.end(), tokens.ids.begin()));
  EXPECT_EQ(tokens.ids[prompt.size()], 257);
}

TEST(Chat, RequiresSpecialTokens) {
  auto file = small_tokenizer();
  file["added_tokens"][1]["special"] = false;
  Tokenizer tokenizer = make(file);
  EXPECT_THROW(ChatTemplate{tokenizer}, Error);
}

// The oracle is the Hugging Face tokenizers wheel itself, on strings of all planes, of broken UTF-8, of long runs and
// of look-alikes of special tokens.
class TokenizerOracle : public testing::TestWithParam<const char*> {};

TEST_P(TokenizerOracle, EqualsTheWheelOnGeneratedStrings) {
  fs::path folder = fs::temp_directory_path() / fmt::format("fvlm-tokenizer-{}-{}", GetParam(), getpid());
  fs::create_directories(folder);
  int count = std::string(GetParam()) == "smollm2" ? 100'000 : 20'000;
  std::string command = fmt::format("{} {} {} {} {}", FVLM_PYTHON, FVLM_ORACLE, GetParam(), folder.string(), count);
  ASSERT_EQ(std::system(command.c_str()), 0) << command;
  Tokenizer tokenizer = Tokenizer::from_file(folder / "tokenizer.json");
  std::string strings = read_file(folder / "strings.bin"), answers = read_file(folder / "ids.bin");
  size_t at = 0, answer_at = 0;
  auto number = [](const std::string& from, size_t& place) {
    uint32_t value;
    std::memcpy(&value, from.data() + place, 4);
    place += 4;
    return value;
  };
  int different = 0;
  for (int i = 0; i < count; ++i) {
    uint32_t length = number(strings, at);
    std::string_view text(strings.data() + at, length);
    at += length;
    std::vector<TokenId> expected(number(answers, answer_at));
    for (TokenId& id : expected) id = static_cast<TokenId>(number(answers, answer_at));
    uint32_t decoded_length = number(answers, answer_at);
    std::string_view decoded(answers.data() + answer_at, decoded_length);
    answer_at += decoded_length;
    auto ids = tokenizer.encode(text);
    StreamingDetokenizer stream(tokenizer);
    std::string streamed;
    for (TokenId id : expected) streamed += stream.add(id);
    streamed += stream.finish();
    EXPECT_EQ(streamed, tokenizer.decode(expected, true)) << i;
    if (ids != expected && ++different <= 5)
      ADD_FAILURE() << fmt::format("string {}: '{}'\n  wheel {}\n  ours  {}", i, text, fmt::join(expected, " "),
                                   fmt::join(ids, " "));
    EXPECT_EQ(tokenizer.decode(expected), decoded) << i;
  }
  EXPECT_EQ(different, 0) << "of " << count;
  EXPECT_EQ(at, strings.size());
  fs::remove_all(folder);
}

INSTANTIATE_TEST_SUITE_P(Families, TokenizerOracle,
                         testing::Values("smollm2", "gpt2", "llama3", "qwen2", "qwen3_5", "nanochat", "llama2", "gemma",
                                         "mistral", "mistral_plain", "metaspace", "tekken", "deepseek3",
                                         "deepseek_llm"),
                         [](const auto& info) { return std::string(info.param); });
