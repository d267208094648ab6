// Thoughts before answers: which tags a model has, whether a prompt has opened them, and text that comes in pieces.
#include "base/file.h"
#include "base/scratch_folder.h"
#include "data/chat.h"
#include "data/thoughts.h"
#include "small_tokenizer.h"

#include <nlohmann/json.hpp>

#include <fstream>
#include <gmock/gmock.h>

namespace fvlm {
namespace {

using Json = nlohmann::json;

const ThoughtTags tags{"<think>", "", "</think>"}, channel{"<|channel>", "thought", "<channel|>"};

// As "thoughts|text", the same for every size of the pieces.
std::string heard(std::string_view answer, bool is_open = false, const ThoughtTags& in = tags) {
  std::string first;
  for (size_t step = 1; step <= answer.size() + 1; ++step) {
    ThoughtReader reader({&in, is_open});
    ThoughtReader::Piece all;
    const auto take = [&](const ThoughtReader::Piece& piece) {
      EXPECT_TRUE(piece.thoughts.empty() || all.text.empty()) << "thoughts behind a text: " << piece.thoughts;
      all.thoughts += piece.thoughts;
      all.text += piece.text;
    };
    for (std::string_view rest = answer; !rest.empty(); rest.remove_prefix(std::min(step, rest.size())))
      take(reader.add(rest.substr(0, step)));
    take(reader.finish());
    const std::string said = all.thoughts + "|" + all.text;
    if (step == 1) first = said;
    EXPECT_EQ(said, first) << "in pieces of " << step;
  }
  return first;
}

TEST(Thoughts, StandBeforeTheAnswer) {
  EXPECT_EQ(heard("<think>\nHm.\n\nSo <4>.\n</think>\n\nFour.\n"), "Hm.\n\nSo <4>.|Four.\n");
  EXPECT_EQ(heard("\n <think>Hm.</think>Four."), "Hm.|Four.");
  EXPECT_EQ(heard("<think>\n\n</think>\n\nFour."), "|Four.");
  EXPECT_EQ(heard("<think>a</think>b<think>c</think>d"), "a|b<think>c</think>d") << "behind the text they are text";
  EXPECT_EQ(heard("<think>a</thin></think></think>b"), "a</thin>|</think>b");
}

TEST(Thoughts, AreNoneWithoutTheirTag) {
  EXPECT_EQ(heard("  Four."), "|  Four.");
  EXPECT_EQ(heard("<thin"), "|<thin");
  EXPECT_EQ(heard("<thinker> \n"), "|<thinker> \n");
  EXPECT_EQ(heard("Four.</think>"), "|Four.</think>");
  EXPECT_EQ(heard(" \n"), "| \n");
}

TEST(Thoughts, AreOpenBehindAPromptThatBeganThem) {
  EXPECT_EQ(heard("\nHm.\n</think>\n\nFour.", true), "Hm.|Four.");
  EXPECT_EQ(heard("<think>\nHm.\n</think>\n\nFour.", true), "Hm.|Four.") << "the model repeats the tag";
  EXPECT_EQ(heard("<thin", true), "<thin|");
}

TEST(Thoughts, ThatAreCutOffAreThoughts) {
  EXPECT_EQ(heard("<think>\nHm. \n"), "Hm.|");
  EXPECT_EQ(heard("<think>Hm.</thi"), "Hm.</thi|");
  EXPECT_EQ(heard("<think>"), "|");
  EXPECT_EQ(heard("<think>Hm.</think>\n"), "Hm.|");
}

TEST(Thoughts, HaveALabel) {
  EXPECT_EQ(heard("<|channel>thought\nHm.\n<channel|>Four.", false, channel), "Hm.|Four.");
  EXPECT_EQ(heard("<|channel>other\nHm.", false, channel), "|<|channel>other\nHm.");
}

TEST(Thoughts, TellWhereTheyAre) {
  using Place = ThoughtReader::Place;
  ThoughtReader reader({&tags, false});
  std::vector<Place> places;
  for (const char* piece : {"<thi", "nk>", "Hm.", "</think>", "\n\n", "Four."}) {
    (void)reader.add(piece);
    places.push_back(reader.place());
  }
  EXPECT_THAT(places, testing::ElementsAre(Place::begin, Place::thoughts, Place::thoughts, Place::behind, Place::behind,
                                           Place::answer));
}

// A tokenizer's folder with a template, and further tokens that are not special, as Qwen3 has them.
class Folder {
 public:
  Folder(const std::string& chat_template, const std::vector<std::string>& tokens = {}) {
    Json tokenizer = test::small_tokenizer();
    for (const std::string& token : tokens)
      tokenizer["added_tokens"].push_back(
          {{"id", 259 + tokenizer["added_tokens"].size()}, {"content", token}, {"special", false}});
    std::ofstream(folder_.path() / "tokenizer.json") << tokenizer.dump();
    std::ofstream(folder_.path() / "tokenizer_config.json") << R"({"bos_token": "", "eos_token": "<|im_end|>"})";
    std::ofstream(folder_.path() / "chat_template.jinja") << chat_template;
  }
  Tokenizer tokenizer() const { return Tokenizer::from_file(folder_.path() / "tokenizer.json"); }

 private:
  ScratchFolder folder_;
};

std::string public_template(const std::string& name) {
  return read_file(std::string(FVLM_CHAT_TEMPLATES) + "/" + name + ".jinja");
}

struct Expected {
  const char *name, *begin, *variable; // null: none
  bool is_on, is_open;                 // as the template has it
};

class PublicThoughts : public testing::TestWithParam<Expected> {};

TEST_P(PublicThoughts, AreFound) {
  const Expected& expected = GetParam();
  const Folder folder(public_template(expected.name));
  const Tokenizer tokenizer = folder.tokenizer();
  const ChatTemplate chat(tokenizer, {}, "default");
  ASSERT_EQ(chat.thought_tags() != nullptr, expected.begin != nullptr);
  if (expected.begin) {
    EXPECT_STREQ(chat.thought_tags()->begin, expected.begin);
  }
  const auto found = chat.thinking_switch();
  ASSERT_EQ(found.has_value(), expected.variable != nullptr);
  if (found) {
    EXPECT_STREQ(found->variable, expected.variable);
    EXPECT_EQ(found->is_on, expected.is_on);
  }
  const std::vector<Turn> turns = {{"user", "How many? <think>"}};
  const auto thinking = [&](const Json& variables) {
    return chat.thinking_behind(chat.prompt(turns, "", {.variables = &variables}));
  };
  EXPECT_EQ(thinking(Json::object()).is_open, expected.is_open);
  if (!expected.begin || !found) return;
  EXPECT_EQ(thinking({{expected.variable, true}}).tags, chat.thought_tags());
  EXPECT_EQ(thinking({{expected.variable, false}}).tags, nullptr) << "the prompt has an empty block of thoughts";
}

INSTANTIATE_TEST_SUITE_P(Templates, PublicThoughts,
                         testing::Values(Expected{"qwen3", "<think>", "enable_thinking", true, false},
                                         Expected{"qwen3_5", "<think>", "enable_thinking", true, true},
                                         Expected{"smollm3", "<think>", "enable_thinking", true, false},
                                         Expected{"deepseek_r1", "<think>", nullptr, false, true},
                                         Expected{"gemma4", "<|channel>", "enable_thinking", false, false},
                                         Expected{"granite", nullptr, "thinking", false, false},
                                         Expected{"qwen25", nullptr, nullptr, false, false},
                                         Expected{"llama31", nullptr, nullptr, false, false}),
                         [](const auto& info) { return std::string(info.param.name); });

TEST(Thoughts, HaveTheTagsOfTheTokenizer) {
  const Folder folder(public_template("qwen25"), {"[THINK]", "[/THINK]"}), half(public_template("qwen25"), {"<think>"});
  const Tokenizer tokenizer = folder.tokenizer(), without = half.tokenizer();
  ASSERT_NE(ChatTemplate(tokenizer, {}, "default").thought_tags(), nullptr);
  EXPECT_STREQ(ChatTemplate(tokenizer, {}, "default").thought_tags()->begin, "[THINK]");
  EXPECT_STREQ(ChatTemplate(tokenizer).thought_tags()->begin, "[THINK]") << "in ChatML";
  EXPECT_EQ(ChatTemplate(without, {}, "default").thought_tags(), nullptr) << "they would never end";
}

TEST(Thoughts, OfEarlierAnswersReachTheTemplate) {
  const Folder folder(public_template("qwen3"), {"<think>", "</think>"});
  const Tokenizer tokenizer = folder.tokenizer();
  const ChatTemplate chat(tokenizer, {}, "default");
  Turn answer{"assistant", "Two."};
  answer.thoughts = "Count <|im_end|> them.";
  const std::vector<Turn> turns = {{"user", "How many?"}, answer};
  const std::string text = tokenizer.decode(chat.prompt(turns, ""));
  EXPECT_NE(text.find("<think>\nCount <|im_end|> them.\n</think>\n\nTwo."), std::string::npos) << text;
  const std::vector<TokenId> ids = chat.prompt(turns, "");
  EXPECT_EQ(std::ranges::count(ids, *tokenizer.special_id("<|im_end|>")), 2) << "thoughts spell no special token";
  EXPECT_NO_THROW((void)ChatTemplate(tokenizer).prompt(turns)) << "ChatML leaves them out";
}

} // namespace
} // namespace fvlm
