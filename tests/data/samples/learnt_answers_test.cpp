// Which answers of a conversation are learnt: flags of its turns, and the mix's mask_history.
#include "sample_maker.h"

#include <gmock/gmock.h>

using namespace fvlm;
using namespace fvlm::test;
using testing::ElementsAre;
using testing::HasSubstr;

namespace {

Wanted bare(bool mask_history = false) {
  Wanted wanted = text_only();
  wanted.mix.system = "";
  wanted.mix.mask_history = mask_history;
  return wanted;
}

// Of messages "1", "2", "3", "4", with more keys in those of the answers.
std::string messages(const std::string& first, const std::string& second = "") {
  return fmt::format(R"({{"messages":[{{"role":"user","content":"1"}},{{"role":"assistant","content":"2"{}}},
                         {{"role":"user","content":"3"}},{{"role":"assistant","content":"4"{}}}]}})",
                     first, second);
}

std::vector<std::string> told(const std::string& json, const Wanted& wanted = bare()) {
  const Sample sample = measure({{"json", json}}, wanted);
  EXPECT_EQ(sample.dropped, "") << json;
  std::vector<std::string> all;
  for (const SampleText& text : sample.texts) all.push_back(reported(text));
  return all;
}

// A chat of which the first answer stands as context.
std::string without_first(const std::vector<std::string>& turns) {
  std::string text = chat(turns);
  text.erase(text.find('['), 1);
  text.erase(text.find(']'), 1);
  return text;
}

} // namespace

TEST(LearntAnswers, AnAnswerThatIsFlaggedOffStandsAsContext) {
  const std::string expected = without_first({"1", "2", "3", "4"});
  for (const char* flag : {R"("train":false)", R"("weight":0)", R"("weight":0.0)", R"("loss":false)",
                           R"("train":false,"weight":0,"loss":false)", R"("train":null,"loss":false)"})
    EXPECT_THAT(told(messages(fmt::format(",{}", flag), R"(,"weight":1)")), ElementsAre(expected)) << flag;
  EXPECT_THAT(told(R"({"conversations":[{"from":"human","value":"1","train":false},
                       {"from":"gpt","value":"2","train":false},{"from":"human","value":"3","train":false},
                       {"from":"gpt","value":"4","train":true}]})"),
              ElementsAre(expected));
  EXPECT_THAT(told(R"({"texts":[{"user":"1","assistant":"2","loss":false},{"user":"3","assistant":"4"}]})"),
              ElementsAre(expected));
  EXPECT_THAT(told(R"({"messages":[{"role":"user","content":"1"},{"role":"assistant","content":"2","weight":0},
                       {"role":"user","content":"3"}],"chosen":{"role":"assistant","content":"4"},"rejected":"5"})"),
              ElementsAre(expected, without_first({"1", "2", "3", "5"})));
  EXPECT_THAT(told(messages(R"(,"train":true,"weight":1,"loss":true)")), ElementsAre(chat({"1", "2", "3", "4"})));
}

TEST(LearntAnswers, FlagsChangeNoToken) {
  const Sample flagged = measure({{"json", messages(R"(,"train":false)")}}, bare());
  EXPECT_EQ(flagged.texts[0].ids, measure({{"json", messages("")}}, bare()).texts[0].ids);
}

TEST(LearntAnswers, AnEmptyAnswerMayStandAsContext) {
  EXPECT_THAT(told(R"({"messages":[{"role":"user","content":"1"},{"role":"assistant","content":"","loss":false},
                       {"role":"user","content":"3"},{"role":"assistant","content":"4"}]})"),
              ElementsAre(without_first({"1", "", "3", "4"})));
}

TEST(LearntAnswers, WithoutOneTheSampleIsDropped) {
  for (const std::string& json :
       {messages(R"(,"train":false)", R"(,"weight":0)"), std::string(R"({"user":"1","chosen":"2",
                                      "rejected":{"role":"assistant","content":"3","train":false}})")}) {
    const Sample sample = measure({{"json", json}}, bare());
    EXPECT_EQ(sample.dropped, "a conversation whose answers are all flagged as not to be learnt") << json;
    EXPECT_TRUE(sample.lacks_answer) << json;
  }
}

TEST(LearntAnswers, AFlagThatCannotBeFollowedBreaksTheSample) {
  const auto user = [](const char* flag) {
    return fmt::format(R"({{"messages":[{{"role":"user","content":"1",{}}},{{"role":"assistant","content":"2"}}]}})",
                       flag);
  };
  const std::vector<std::pair<std::string, std::string>> cases = {
      {messages(R"(,"train":1)"), "'train' of turn 1 of 'messages' is 1, and true or false was expected"},
      {messages(R"(,"train":"no")"), "'train' of turn 1 of 'messages' is a string, and true or false was expected"},
      {messages(R"(,"loss":0)"), "'loss' of turn 1 of 'messages' is 0, and true or false was expected"},
      {messages(R"(,"weight":0.5)"), "'weight' of turn 1 of 'messages' is 0.5, and 0 or 1 was expected"},
      {messages("", R"(,"weight":true)"), "'weight' of turn 3 of 'messages' is true, and 0 or 1 was expected"},
      {messages(R"(,"train":true,"weight":0)"), "'train' and 'weight' of turn 1 of 'messages' contradict each other"},
      {messages(R"(,"weight":0,"loss":true)"), "'weight' and 'loss' of turn 1 of 'messages' contradict each other"},
      {messages(R"(,"train_detail":[{"begin_offset":0,"end_offset":1,"train":false}])"),
       "turn 1 of 'messages' has 'train_detail', and an answer is learnt whole or not at all"},
      {user(R"("train":true)"), "'train' of turn 0 of 'messages' says that it is learnt, and its role is user"},
      {user(R"("weight":1)"), "'weight' of turn 0 of 'messages' says that it is learnt"},
      {R"({"texts":[{"user":"1","assistant":"2","weight":2}]})",
       "'weight' of 'assistant' of number 0 of 'texts' is 2"}};
  for (const auto& [json, message] : cases) {
    const std::string output = refusal({{"json", json}}, bare());
    EXPECT_THAT(output, HasSubstr(message)) << json;
    EXPECT_THAT(output, HasSubstr("a.tar: sample 'clips/7'")) << json;
  }
  EXPECT_EQ(refusal({{"json", user(R"("train":false)")}}, bare()), "") << "it says what is so";
}

TEST(MaskHistory, LearnsTheLastAnswerAlone) {
  EXPECT_THAT(told(messages(""), bare(true)), ElementsAre(without_first({"1", "2", "3", "4"})));
  EXPECT_THAT(told(R"({"texts":[{"user":"1","assistant":"2"},{"user":"3","assistant":"4"}]})", bare(true)),
              ElementsAre(without_first({"1", "2", "3", "4"})));
  EXPECT_THAT(told(R"({"messages":[{"role":"user","content":"1"},{"role":"assistant","content":"2"},
                       {"role":"user","content":"3"}],"chosen":"4","rejected":"5"})",
                   bare(true)),
              ElementsAre(without_first({"1", "2", "3", "4"}), without_first({"1", "2", "3", "5"})));
  EXPECT_THAT(told(R"({"user":"1","assistant":"2"})", bare(true)), ElementsAre(chat({"1", "2"})));
  EXPECT_THAT(told(R"({"token_ids":[1,2,3,4],"loss_mask":[0,1,0,1]})", bare(true)),
              ElementsAre(told(R"({"token_ids":[1,2,3,4],"loss_mask":[0,1,0,1]})").front()));
  const Sample off = measure({{"json", messages("", R"(,"train":false)")}}, bare(true));
  EXPECT_EQ(off.dropped, "a conversation whose last answer is flagged as not to be learnt");
  EXPECT_TRUE(off.lacks_answer);
}

// An earlier answer does not take the place of the last one.
TEST(MaskHistory, ATruncatedLastAnswerIsNotReplaced) {
  Wanted wanted = bare(true);
  const std::string json = messages("");
  wanted.mix.max_text_tokens = static_cast<int64_t>(measure({{"json", json}}, wanted).texts[0].ids.size()) - 3;
  EXPECT_THAT(measure({{"json", json}}, wanted).dropped, HasSubstr("of whose answer max_text_tokens"));
  wanted.mix.mask_history = false;
  EXPECT_EQ(measure({{"json", json}}, wanted).dropped, "");
}

TEST(MaskHistory, TeachersReadTheSameAnswers) {
  Wanted wanted = bare(true);
  wanted.mix.teacher_prompt = "P";
  const Sample sample = measure({{"json", messages("")}}, wanted);
  ASSERT_EQ(sample.teacher_texts.size(), 1u);
  EXPECT_EQ(reported(sample.teacher_texts[0]), without_first({"P", "2", "3", "4"}));
}
