// The content of samples: the forms of their JSON, and errors in it.
#include "sample_maker.h"

#include <gmock/gmock.h>

using namespace fvlm;
using namespace fvlm::test;
using testing::ElementsAre;
using testing::HasSubstr;

namespace {

Sample text(const std::string& json, Wanted wanted = text_only()) {
  return measure({{"json", json}}, wanted);
}

std::vector<std::string> all_told(const Sample& sample) {
  std::vector<std::string> all;
  for (const auto& text : sample.texts) all.push_back(reported(text));
  return all;
}

} // namespace

TEST(SampleContent, QuestionAndAnswer) {
  Sample sample = text(R"({"user":"What?","assistant":"Cats.","source":"zoo","frame_count":0})");
  EXPECT_EQ(sample.source, "zoo");
  EXPECT_EQ(sample.key, "clips/7");
  EXPECT_EQ(sample.frames, 0);
  EXPECT_THAT(all_told(sample), ElementsAre(with_system(chat({"What?", "Cats."}))));
  EXPECT_EQ(sample.rows(), static_cast<int64_t>(sample.texts[0].ids.size()));
}

TEST(SampleContent, PairIsTwoTexts) {
  EXPECT_THAT(all_told(text(R"({"user":"Q","chosen_assistant":"good","rejected_assistant":"bad"})")),
              ElementsAre(with_system(chat({"Q", "good"})), with_system(chat({"Q", "bad"}))));
}

TEST(SampleContent, ACompletionAnswersItsPrompt) {
  const auto expected = with_system(chat({"Q", "A"}));
  EXPECT_THAT(all_told(text(R"({"prompt":"Q","completion":"A"})")), ElementsAre(expected));
  EXPECT_THAT(all_told(text(R"({"prompt":[{"role":"user","content":"Q"}],
                                "completion":[{"role":"assistant","content":"A"}]})")),
              ElementsAre(expected));
  Wanted mapped = text_only();
  mapped.source.fields = {{"user", "instruction"}, {"completion", "said"}};
  EXPECT_THAT(all_told(text(R"({"instruction":"Q","said":"A"})", mapped)), ElementsAre(expected));
}

TEST(SampleContent, AnswersAreJudgedByTruthValues) {
  const auto judgement = [](const std::string& said, Wanted wanted = text_only()) {
    return text(R"({"user":"Q","assistant":"A",)" + said + "}", wanted).is_desirable;
  };
  EXPECT_EQ(judgement(R"("label":true)"), true);
  EXPECT_EQ(judgement(R"("kto_tag":false)"), false);
  EXPECT_EQ(judgement(R"("label":1)"), std::nullopt) << "may be a class";
  EXPECT_EQ(judgement(R"("label":"cat")"), std::nullopt);
  for (const auto& [label, is_good] : {std::pair("0", std::optional(false)), std::pair("1", std::optional(true)),
                                       std::pair("2", std::optional<bool>())})
    EXPECT_EQ(text(std::string(R"({"prompt":"Q","completion":"A","label":)") + label + "}").is_desirable, is_good)
        << label;
  Wanted mapped = text_only();
  mapped.source.fields = {{"label", "liked"}};
  EXPECT_EQ(judgement(R"("liked":1)", mapped), true);
  EXPECT_EQ(judgement(R"("liked":false)", mapped), false);
  EXPECT_THAT(refusal({{"json", R"({"user":"Q","assistant":"A","liked":"yes"})"}}, mapped),
              HasSubstr("'liked' (by the recipe the label) is a string, and true or false was expected"));
}

TEST(SampleContent, CaptionAnswersThePromptOfItsSource) {
  Wanted wanted = text_only();
  EXPECT_THAT(all_told(text(R"({"caption":"A cat.","source":"webvid"})")),
              ElementsAre(with_system(chat({"What would be the WebVid caption for this video?", "A cat."}))));
  EXPECT_THAT(all_told(measure({{"txt", " A dog.\n"}}, wanted)),
              ElementsAre(with_system(chat({"Describe this.", "A dog."}))));
  wanted.source.name = "mine";
  wanted.mix.prompts = {{"mine", "Say it."}};
  EXPECT_THAT(all_told(measure({{"txt", "A dog."}}, wanted)), ElementsAre(with_system(chat({"Say it.", "A dog."}))));
  EXPECT_THAT(all_told(text(R"({"caption":"x","source":"vript"})", wanted)),
              ElementsAre(with_system(chat({"Provide a detailed narration of what happens in this video.", "x"}))));
  wanted.mix.prompts["default"] = "What is it?";
  EXPECT_THAT(all_told(text(R"({"user":"","assistant":"x","source":"other"})", wanted)),
              ElementsAre(with_system(chat({"What is it?", "x"}))));
  EXPECT_EQ(measure({{"txt", "A dog."}, {"json", R"({"source":"s","user":"Who?"})"}}, wanted).source, "s");
}

TEST(SampleContent, LearnsEveryAnswerOfAConversation) {
  EXPECT_THAT(all_told(text(R"({"messages":[{"role":"user","content":"1"},{"role":"assistant","content":"2"},
                                {"role":"user","content":[{"type":"image"},{"type":"text","text":"3"},
                                {"type":"text","text":"!"}]},{"role":"assistant","content":"4"}]})")),
              ElementsAre(with_system(chat({"1", "2", "3!", "4"}))));
  EXPECT_THAT(all_told(text(R"({"messages":[{"role":"system","content":"Be short."},{"role":"user","content":"1"},
                                {"role":"assistant","content":"2"}]})")),
              ElementsAre(with_system(chat({"1", "2"}), "Be short.")));
}

TEST(SampleContent, RemovesPlaceholdersOfLlava) {
  EXPECT_THAT(all_told(text(R"({"conversations":[{"from":"human","value":"<image>\nWhat is it?"},
                                {"from":"gpt","value":"A <image> tag."},{"from":"human","value":"  And\nnow? <video>"},
                                {"from":"gpt","value":"Nothing."},{"from":"human","value":"<image>"},
                                {"from":"assistant","value":"Yes."}]})")),
              ElementsAre(with_system(
                  chat({"What is it?", "A <image> tag.", "And\nnow?", "Nothing.", "Describe this.", "Yes."}))));
}

TEST(SampleContent, QuestionsOfEveryFormLoseTheirPlaceholders) {
  EXPECT_THAT(
      all_told(
          text(R"({"messages":[{"role":"user","content":"<image>\nWhat?"},{"role":"assistant","content":"An <image>."},
                                {"role":"user","content":[{"type":"text","text":"<video>And now?"}]},
                                {"role":"assistant","content":"B"}]})")),
      ElementsAre(with_system(chat({"What?", "An <image>.", "And now?", "B"}))));
  EXPECT_THAT(all_told(text(R"({"user":"<image>\nWhat?","assistant":"A"})")),
              ElementsAre(with_system(chat({"What?", "A"}))));
  EXPECT_THAT(all_told(text(R"({"user":"<image>","caption":"A"})")),
              ElementsAre(with_system(chat({"Describe this.", "A"}))));
  EXPECT_THAT(all_told(text(R"({"user":"Q <image>","chosen_assistant":"A","rejected_assistant":"B"})")),
              ElementsAre(with_system(chat({"Q", "A"})), with_system(chat({"Q", "B"}))));
  EXPECT_THAT(all_told(text(R"({"user":"<image> Q","choices":["A","B"]})")),
              ElementsAre(with_system(chat({"Q", "A"})), with_system(chat({"Q", "B"}))));
}

TEST(SampleContent, ChoicesAreTextsWithANumberLetterOrTextAsAnswer) {
  auto right = [](const char* answer) {
    return text(fmt::format(R"({{"user":"Q","choices":["red","B","blue"],"answer":{}}})", answer)).correct_choice;
  };
  for (const char* answer : {"2", R"("C")", R"("c")", "\"(C)\"", R"("C.")", R"("blue")", R"(" blue ")"})
    EXPECT_EQ(right(answer), 2) << answer;
  EXPECT_EQ(right(R"("B")"), 1) << "a text before a letter";
  EXPECT_EQ(right("null"), std::nullopt);
  EXPECT_THAT(all_told(text(R"({"user":"Q","choices":["red","blue"],"answer":0})")),
              ElementsAre(with_system(chat({"Q", "red"})), with_system(chat({"Q", "blue"}))));
}

TEST(SampleContent, SeveralAnswersAreKeptAndTheMostFrequentIsLearnt) {
  const Sample people = text(R"({"user":"Q","answers":["two",{"answer":"2"},"many",{"answer":"2","id":7}]})");
  EXPECT_THAT(all_told(people), ElementsAre(with_system(chat({"Q", "2"}))));
  EXPECT_THAT(people.answers, ElementsAre("two", "2", "many", "2"));
  EXPECT_THAT(all_told(text(R"({"user":"Q","answers":["b","a"]})")), ElementsAre(with_system(chat({"Q", "b"}))));
  const Sample given = text(R"({"user":"Q","assistant":"A","answers":["a","b"]})");
  EXPECT_THAT(all_told(given), ElementsAre(with_system(chat({"Q", "A"}))));
  EXPECT_THAT(given.answers, ElementsAre("a", "b"));
}

TEST(SampleContent, TakesTokenizedSamples) {
  Sample one = text(R"({"token_ids":[104,105,33],"loss_mask":[0,true,1]})");
  EXPECT_THAT(all_told(one), ElementsAre("h[i!]"));
  Sample several = text(R"({"token_ids":[[104],[105,33]],"loss_mask":[[1],[0,1]],"answer":1})");
  EXPECT_THAT(all_told(several), ElementsAre("[h]", "i[!]"));
  EXPECT_EQ(several.correct_choice, 1);
}

TEST(SampleContent, RecipeRenamesFields) {
  Wanted wanted = text_only();
  wanted.source.fields = {{"user", "question"}, {"assistant", "reply"}, {"source", "origin"}};
  Sample sample = text(R"({"question":"Q","reply":"A","origin":"o","caption":"not this","messages":[]})", wanted);
  EXPECT_THAT(all_told(sample), ElementsAre(with_system(chat({"Q", "A"}))));
  EXPECT_EQ(sample.source, "o");
  EXPECT_THAT(refusal({{"json", R"({"assistant":"A"})"}}, wanted),
              HasSubstr("'reply' (by the recipe the assistant) is missing"));
}

TEST(SampleContent, SystemLineCanBeReplacedOrRemoved) {
  Wanted wanted = text_only();
  wanted.mix.system = "Look.";
  EXPECT_THAT(all_told(text(R"({"user":"Q","assistant":"A"})", wanted)),
              ElementsAre(with_system(chat({"Q", "A"}), "Look.")));
  wanted.mix.system = "";
  EXPECT_THAT(all_told(text(R"({"user":"Q","assistant":"A"})", wanted)), ElementsAre(chat({"Q", "A"})));
}

TEST(SampleContent, UserTextYieldsNoSpecialToken) {
  Sample sample = text(R"({"user":"<|im_end|>","assistant":"<|im_start|>"})");
  EXPECT_EQ(std::count(sample.texts[0].ids.begin(), sample.texts[0].ids.end(), 260), 3) << "system, user, assistant";
}

TEST(SampleContent, LongTextIsTruncatedAndCountedOrSkipped) {
  Wanted wanted = text_only();
  wanted.mix.system = "";
  const std::string json = R"({"user":"Q","assistant":"0123456789"})";
  auto whole = static_cast<int64_t>(text(json, wanted).texts[0].ids.size());
  for (int64_t most = whole + 1; most >= 2; --most) {
    wanted.mix.max_text_tokens = most;
    wanted.mix.overlong = plan::Overlong::truncate;
    Sample sample = text(json, wanted);
    int64_t cut = std::max<int64_t>(whole - most, 0);
    constexpr int64_t answer = 12; // ten digits, the end of the turn and of the line
    EXPECT_EQ(sample.truncated_tokens, cut) << most;
    EXPECT_EQ(sample.truncated_answer_tokens, std::min(cut, answer)) << most;
    EXPECT_EQ(sample.texts[0].ids.size(), static_cast<size_t>(std::min(most, whole))) << most;
    EXPECT_EQ(sample.texts[0].answer_mask.size(), sample.texts[0].ids.size()) << most;
    EXPECT_EQ(!sample.dropped.empty(), cut >= answer) << most << ": " << sample.dropped;
    wanted.mix.overlong = plan::Overlong::drop;
    sample = text(json, wanted);
    EXPECT_EQ(!sample.dropped.empty(), cut > 0) << most;
    EXPECT_EQ(sample.truncated_tokens, 0) << most;
  }
}

TEST(SampleContent, RejectedAnswerIsTruncatedAndCountedToo) {
  Wanted wanted = text_only();
  wanted.mix.system = "";
  const std::string json = R"({"user":"Q","chosen_assistant":"0123456789","rejected_assistant":"01234567890123"})";
  Sample whole = text(json, wanted);
  wanted.mix.max_text_tokens = static_cast<int64_t>(whole.texts[0].ids.size()) - 3;
  Sample sample = text(json, wanted);
  EXPECT_EQ(whole.texts[1].ids.size(), whole.texts[0].ids.size() + 4);
  EXPECT_EQ(sample.texts[0].ids.size(), sample.texts[1].ids.size());
  EXPECT_EQ(sample.truncated_tokens, 3 + 7);
  EXPECT_EQ(sample.truncated_answer_tokens, 3 + 7);
  EXPECT_EQ(sample.dropped, "");
}

struct Wrong {
  const char* json;
  const char* message;
};

TEST(SampleContent, ErrorsNameSampleAndPart) {
  const std::vector<Wrong> cases = {
      {R"({"user":"Q"})", "it has no text"},
      {R"({"instruction":"Q","completion":"A"})", "it has no text"},
      {R"({"user":7,"assistant":"A"})", "'user' is a number, and a text was expected"},
      {R"({"user":"Q","assistant":["A"]})", "'assistant' is an array, and a text was expected"},
      {R"({"user":"Q","assistant":" \n"})", "'assistant' is empty"},
      {R"({"user":"Q","chosen_assistant":"A"})", "'rejected_assistant' is missing"},
      {R"({"caption":{}})", "'caption' is an object"},
      {R"({"caption":"A","frame_count":"8"})", "'frame_count' is a string, and a count was expected"},
      {R"({"caption":"A","frame_count":-1})", "'frame_count' is -1"},
      {R"({"caption":"A","frame_count":1.5})", "'frame_count' is 1.5"},
      {R"({"caption":"A","frame_count":1e300})", "'frame_count' is 1e+300"},
      {R"({"caption":"A","frame_count":18446744073709551615})", "'frame_count' is 18446744073709551615"},
      {R"({"caption":"A","frame_count":3})", "'frame_count' is 3, and there are no frames"},
      {R"({"messages":[]})", "'messages' is an empty list"},
      {R"({"messages":"hello"})", "'messages' is a string, and a list was expected"},
      {R"({"messages":[3]})", "turn 0 of 'messages' is a number"},
      {R"({"messages":[{"role":"user"}]})", "turn 0 of 'messages' has no 'content'"},
      {R"({"messages":[{"role":"function","content":"x"}]})", "the role 'function'"},
      {R"({"messages":[{"role":"user","content":"x"}]})", "'messages' has no turn of the assistant"},
      {R"({"messages":[{"role":"user","content":"x"},{"role":"system","content":"x"}]})",
       "turn 1 of 'messages' is a system"},
      {R"({"messages":[{"role":"user","content":"x"},{"role":"assistant","content":""}]})",
       "turn 1 of 'messages' is an empty"},
      {R"({"messages":[{"role":"user","content":[{"type":"audio"}]}]})", "type 'audio'"},
      {R"({"messages":[{"role":"user","content":[{"type":"text"}]}]})", "without 'text'"},
      {R"({"messages":[{"role":"user","content":null}]})", "'content' of turn 0 of 'messages' is a null"},
      {R"({"conversations":[{"from":"gpt","value":3}]})", "'value' of turn 0 of 'conversations' is a number"},
      {R"({"conversations":{"from":"gpt"}})", "'conversations' is an object, and a list was expected"},
      {R"({"user":"Q","answers":[]})", "'answers' is an empty list"},
      {R"({"user":"Q","answers":["a",2]})", "number 1 of 'answers' is a number"},
      {R"({"user":"Q","answers":"a"})", "'answers' is a string, and a list was expected"},
      {R"({"user":"Q","choices":["a"]})", "'choices' has 1 options"},
      {R"({"user":"Q","choices":["a",2]})", "option 1 of 'choices' is a number"},
      {R"({"user":"Q","choices":["a",""]})", "option 1 of 'choices' is empty"},
      {R"({"user":"Q","choices":["a","b"],"answer":2})", "'answer' is 2, and the options are numbered 0 to 1"},
      {R"({"user":"Q","choices":["a","b"],"answer":-1})", "'answer' is -1"},
      {R"({"user":"Q","choices":["a","b"],"answer":18446744073709551615})", "'answer' is 18446744073709551615"},
      {R"({"user":"Q","choices":["a","b"],"answer":"C"})", "'answer' is none of the 2 options"},
      {R"({"user":"Q","choices":["a","b"],"answer":[0]})", "'answer' is an array"},
      {R"({"token_ids":[1,2]})", "'loss_mask' is missing"},
      {R"({"token_ids":[],"loss_mask":[]})", "'token_ids' is an empty list"},
      {R"({"token_ids":[1,2],"loss_mask":[1]})", "'token_ids' has 2 entries, and 'loss_mask' has 1"},
      {R"({"token_ids":[1,-2],"loss_mask":[1,1]})", "entry 1 of 'token_ids' is no token: -2"},
      {R"({"token_ids":[1,261],"loss_mask":[1,1]})", "'token_ids' has token 261, and the tokenizer has 261"},
      {R"({"token_ids":[1,99999999999],"loss_mask":[1,1]})", "entry 1 of 'token_ids' is no token: 99999999999"},
      {R"({"token_ids":[1,2],"loss_mask":[1,2]})", "entry 1 of 'loss_mask' is neither 0 nor 1: 2"},
      {R"({"token_ids":[1,2],"loss_mask":[0,0]})", "'loss_mask' has no 1"},
      {R"({"token_ids":[[1],2],"loss_mask":[[1],[1]]})", "a text of 'token_ids' is a number"},
      {R"({"token_ids":[[1]],"loss_mask":[1]})", "are not lists of the same texts"},
      {R"({"text":"A story"})", "fields = { caption = \"text\" } says which keys are its text"},
      {R"({"question":"Q","response":"A"})", "fields = { user = \"question\", assistant = \"response\" }"},
      {R"([1])", "clips/7.json is an array, and an object was expected"},
      {R"({"caption":"A",)", "clips/7.json: invalid JSON"},
      {R"({"caption":"A","caption":"B"})", "duplicate key"},
      {"{\"caption\":\"\xff\"}", "clips/7.json: invalid JSON"},
  };
  for (const auto& [json, message] : cases) {
    std::string output = refusal({{"json", json}}, text_only());
    EXPECT_THAT(output, HasSubstr(message)) << json;
    EXPECT_THAT(output, HasSubstr("a.tar: sample 'clips/7'")) << json;
  }
  EXPECT_THAT(refusal({{"txt", "\xff"}}, text_only()), HasSubstr("clips/7.txt is no UTF-8"));
  EXPECT_THAT(refusal({{"xml", "x"}, {"md", "x"}}, text_only()),
              HasSubstr("neither clips/7.json nor clips/7.txt among its 2 members: xml, md"));
  EXPECT_THAT(refusal({{"xml", "x"}}, text_only()), HasSubstr("among its 1 member: xml"));
}

TEST(SampleContent, ADotInAFileNameIsExplained) {
  const std::string rule = "a sample's key ends at the first dot of the file name, so the key of '7.photo.1.jpg' is "
                           "'7': take the other dots out of the names, as in 7_photo_1.jpg with 7_photo_1.json";
  EXPECT_THAT(refusal({{"photo.1.jpg", "x"}, {"photo.1.json", "{}"}}), HasSubstr(rule));
  EXPECT_THAT(refusal({{"json", R"({"caption":"A"})"}, {"photo.1.jpg", "x"}}), HasSubstr(rule));
  EXPECT_THAT(refusal({{"xml", "x"}, {"000.jpg", "x"}}), testing::Not(HasSubstr("first dot")));
}

TEST(SampleContent, RefusesAMegabyteOfNestingOrTextQuickly) {
  for (const char* open : {"[", "{\"a\":"}) {
    std::string json = "{\"caption\":";
    while (json.size() < 1'000'000) json += open;
    EXPECT_THAT(refusal({{"json", json}}, text_only()), HasSubstr("nested more than 64 levels deep"));
  }
  EXPECT_THAT(refusal({{"json", R"({"choices":[")" + std::string(10000, 'a') + R"(","b"],"user":")" +
                                    std::string(3'000'000, 'q') + "\"}"}},
                      text_only()),
              HasSubstr("its texts are longer than 4194304 bytes in all"));
}

TEST(SampleContent, OfATarMayHaveMegabytesAsThatOfJsonLines) {
  const std::string json = R"({"caption":"A","unused":")" + std::string(5 << 20, 'x') + "\"}";
  EXPECT_EQ(measure({{"json", json}}, text_only()).texts.size(), 1U);
}

TEST(SampleReader, FormatsChatsByTheTemplateOfTheTokenizersFolder) {
  const Folder folder;
  write_bytes(folder / "tokenizer.json", small_tokenizer().dump());
  write_bytes(
      folder / "chat_template.jinja",
      "{% for m in messages %}{% if m.role == 'user' and 'no' in m.content %}{{ raise_exception('rude') }}{% endif %}"
      "<{{ m.role }}>{{ m.content }}{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}");
  const Tokenizer tokenizer = Tokenizer::from_file(folder / "tokenizer.json");
  Wanted wanted = text_only();
  wanted.mix.system = "";
  wanted.mix.chat_template = "default";
  const SampleReader reader(wanted.mix, tokenizer, wanted.image_size, nullptr);
  auto read = [&](const std::string& json) {
    const OneSample one({{"json", json}});
    return reader.measure(*one.shard, one.shard->sample(0), wanted.source);
  };
  EXPECT_THAT(all_told(read(R"({"user":"What?","assistant":"Cats."})")), ElementsAre("<user>What?<assistant>[Cats.]"));
  try {
    read(R"({"user":"no","assistant":"Cats."})");
    ADD_FAILURE() << "what the template refuses was read";
  } catch (const Error& error) {
    EXPECT_THAT(error.text(), HasSubstr("chat_template.jinja:1: the template refuses the conversation: rude"));
    EXPECT_THAT(error.text(), HasSubstr("sample 'clips/7'"));
  }
  wanted.mix.chat_template = "tool_use";
  EXPECT_THROW(SampleReader(wanted.mix, tokenizer, wanted.image_size, nullptr), Error);
}

namespace {

// The small tokenizer in a folder that names a bos_token.
const Tokenizer& tokenizer_of_a_folder() {
  static const Folder folder;
  static const Tokenizer tokenizer = [] {
    write_bytes(folder / "tokenizer.json", small_tokenizer().dump());
    write_bytes(folder / "tokenizer_config.json", R"({"bos_token": {"content": "<|im_start|>"}})");
    return Tokenizer::from_file(folder / "tokenizer.json");
  }();
  return tokenizer;
}

Sample document(const Files& files, const Tokenizer& tokenizer = tokenizer_of_a_folder()) {
  Wanted wanted = text_only();
  wanted.mix.documents = plan::Documents::joined;
  wanted.mix.max_text_tokens = 4;
  wanted.mix.system = "";
  const OneSample one(files);
  return SampleReader(wanted.mix, tokenizer, 4, nullptr).measure(*one.shard, one.shard->sample(0), wanted.source);
}

} // namespace

TEST(Documents, StartWithBosAndAreLearntWhole) {
  for (const Files& files :
       {Files{{"txt", "a document <|im_end|>"}}, Files{{"json", R"({"text":"a document <|im_end|>"})"}}}) {
    const Sample sample = document(files);
    ASSERT_EQ(sample.texts.size(), 1U);
    EXPECT_EQ(reported(sample.texts[0]), "[<|im_start|>a document <|im_end|>]")
        << "max_text_tokens is the length of rows";
    EXPECT_EQ(std::count(sample.texts[0].ids.begin(), sample.texts[0].ids.end(), 260), 0) << "text is no special token";
  }
  EXPECT_EQ(reported(document({{"json", R"({"user":"Q","assistant":"A"})"}}).texts[0]), chat({"Q", "A"}))
      << "a conversation begins with this bos already";
}

TEST(Documents, NeedABosTokenAndText) {
  EXPECT_THROW(document({{"txt", "a"}}, byte_tokenizer()), Error);
  EXPECT_THROW(document({{"txt", " \n"}}), Error);
  try {
    document({{"txt", "a"}}, byte_tokenizer());
  } catch (const Error& error) {
    EXPECT_THAT(error.text(), HasSubstr("the tokenizer has no special token '<|bos|>', which documents start with"));
  }
}
