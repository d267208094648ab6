// Entries of benchmarks as they are published, beside the questions that are made of them.
#include "base/base64.h"
#include "base/error.h"
#include "evaluation/forms/form.h"
#include "evaluation/forms/python_list.h"

#include <gmock/gmock.h>

namespace fvlm::evaluation {
namespace {

using nlohmann::json;
using testing::ElementsAre;
using testing::EndsWith;
using testing::HasSubstr;

constexpr const char* by_letter = "\nAnswer with the option's letter from the given choices directly.";
constexpr const char* by_phrase = "\nAnswer the question using a single word or phrase.";

Question read(json object, const char* form = "columns") {
  return form_named(form).read({std::move(object), "0", "file"});
}

std::string user(const Question& question) {
  return question.sample["user"];
}

std::string why_not(json object) {
  try {
    read(std::move(object));
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::data);
    return error.what();
  }
  return "";
}

json bytes(std::string_view text) {
  return json::binary({text.begin(), text.end()});
}

std::vector<std::string> contents(const Question& question) {
  std::vector<std::string> all;
  for (const Picture& picture : question.media) all.push_back(picture.content);
  return all;
}

TEST(PythonLists, AreReadAsPythonPrintsThem) {
  EXPECT_THAT(*python_list(R"(['a', "it's", 3, -1.5, None])"), ElementsAre("a", "it's", "3", "-1.5", "None"));
  EXPECT_THAT(*python_list(R"(['tab\t\'\\', 'caf\xe9', '\u03b1', "\ud83d\ude00", '\d'])"),
              ElementsAre("tab\t'\\", "caf\xc3\xa9", "\xce\xb1", "\xf0\x9f\x98\x80", "\\d"));
  EXPECT_THAT(*python_list(" [ 'a' , ] "), ElementsAre("a"));
  EXPECT_TRUE(python_list("[]")->empty());
  for (const char* none :
       {"", "a", "['a'", "['a]", "['a' 'b']", "[a]", "[See the figure]", "['a'] b", "[['a']]", "['\\xq1']"})
    EXPECT_FALSE(python_list(none)) << none;
}

TEST(Columns, OptionsAreListedBelowTheQuestion) {
  const Question question = read({{"index", "7"},
                                  {"question", "Which one?"},
                                  {"hint", "Look left."},
                                  {"A", "a cat"},
                                  {"B", "a dog"},
                                  {"C", "nan"},
                                  {"D", nullptr},
                                  {"answer", "B"},
                                  {"category", "animals"},
                                  {"image", encode_base64(std::string(90, 'p'))}});
  EXPECT_EQ(user(question), std::string("Look left.\nWhich one?\nA. a cat\nB. a dog") + by_letter);
  EXPECT_EQ(question.sample["choices"], json::array({"A", "B"}));
  EXPECT_EQ(question.sample["answer"], 1);
  EXPECT_EQ(question.sample["source"], "animals");
  EXPECT_THAT(contents(question), ElementsAre(std::string(90, 'p')));
}

TEST(Columns, TheRightOptionIsALetterATextOrANumber) {
  const auto right = [](const char* key, json options, json answer) {
    return read({{"question", "?"}, {key, std::move(options)}, {"answer", std::move(answer)}})
        .sample["answer"]
        .get<int>();
  };
  EXPECT_EQ(right("options", "['x', 'y']", "B"), 1) << "MMMU";
  EXPECT_EQ(right("options", {"3", "2", "1", "4"}, "2"), 2) << "AI2D's number goes before a text";
  EXPECT_EQ(right("choices", {"3", "2", "1", "4"}, "2"), 1) << "MathVista's text goes before a number";
  EXPECT_EQ(right("choices", {"x", "y", "z"}, 2), 2) << "ScienceQA";
  EXPECT_EQ(right("choices", {"x", "y"}, "(B)"), 1);
  EXPECT_EQ(right("options", {"x", "y"}, " y "), 1);
  EXPECT_THAT(why_not({{"question", "?"}, {"options", {"x", "y"}}, {"answer", "?"}}),
              HasSubstr("none of the 2 options"));
  EXPECT_THAT(why_not({{"question", "?"}, {"options", {"x", "y"}}, {"answer", 2}}), HasSubstr("none of the 2 options"));
  EXPECT_THAT(why_not({{"question", "?"}, {"options", "x or y"}, {"answer", "A"}}), HasSubstr("a list was expected"));
  EXPECT_THAT(why_not({{"question", "?"}, {"A", "x"}, {"B", "y"}}), HasSubstr("'answer' is missing"));
}

TEST(Columns, MmmuNamesItsImagesInTheText) {
  const Question question = read({{"id", "validation_Art_1"},
                                  {"question", "Is <image 2> like <image 1>?"},
                                  {"options", "['<image 3>', \"no\"]"},
                                  {"answer", "A"},
                                  {"question_type", "multiple-choice"},
                                  {"subfield", "Drawing"},
                                  {"image_1", {{"bytes", bytes("one")}, {"path", "1.png"}}},
                                  {"image_2", {{"bytes", bytes("two")}, {"path", nullptr}}},
                                  {"image_3", {{"bytes", bytes("three")}, {"path", nullptr}}},
                                  {"image_4", nullptr}});
  EXPECT_EQ(user(question), std::string("Is <image> like <image>?\nA. <image>\nB. no") + by_letter);
  EXPECT_THAT(contents(question), ElementsAre("two", "one", "three"));
  EXPECT_EQ(question.sample["source"], "Drawing");
  const Question open = read({{"question", "How much is <image 1>?"},
                              {"options", "[]"},
                              {"answer", "['24/7', '3.429']"},
                              {"image_1", {{"bytes", bytes("one")}}}});
  EXPECT_EQ(open.sample["answers"], json::array({"24/7", "3.429"}));
  EXPECT_EQ(user(open), std::string("How much is <image>?") + by_phrase);
  EXPECT_THAT(why_not({{"question", "What is <image 2>?"}, {"answer", "x"}, {"image_1", {{"bytes", bytes("one")}}}}),
              HasSubstr("<image 2>, and it has 1 image"));
}

TEST(Columns, OptionsMayStandInTheQuestion) {
  const Question star =
      read({{"question", "What is it?\nOptions: A: a cat, B: a dog, C: a cow, D: a hen"}, {"answer", "C"}});
  EXPECT_EQ(star.sample["choices"], json::array({"A", "B", "C", "D"}));
  EXPECT_EQ(star.sample["answer"], 2);
  EXPECT_THAT(user(star), EndsWith(std::string("D: a hen") + by_letter));
  const std::string asked = "Which way?\nA. Left\nB. Right\nPlease answer directly with only the letter of the correct "
                            "option and nothing else.";
  EXPECT_EQ(user(read({{"question", asked}, {"answer", "A"}})), asked) << "RealWorldQA";
  const Question word = read({{"question", "How many?"}, {"answer", "2"}});
  EXPECT_EQ(word.sample["answers"], json::array({"2"}));
  EXPECT_FALSE(word.sample.contains("choices"));
}

TEST(Columns, OpenQuestionsHaveTheirAnswers) {
  EXPECT_EQ(read({{"question", "?"}, {"answers", {"a", "b"}}}, "docvqa").sample["answers"], json::array({"a", "b"}));
  EXPECT_EQ(read({{"question", "?"}, {"answer", {"a"}}}, "ocrbench").sample["answers"], json::array({"a"}));
  EXPECT_EQ(read({{"question", "?"}, {"answer", 7.5}}).sample["answers"], json::array({"7.5"}));
  EXPECT_EQ(read({{"question", "?"}, {"answer", "[See below]"}}).sample["answers"], json::array({"[See below]"}));
  const json people = {{{"answer", "a"}, {"answer_id", 1}}, {{"answer", "b"}, {"answer_id", 2}}};
  EXPECT_EQ(read({{"question", "?"}, {"answers", people}}, "textvqa").sample["answers"], people) << "VQAv2";
  EXPECT_EQ(user(read({{"question", "what is written?"}, {"answer", "a"}}, "ocrbench")), "what is written?");
  EXPECT_EQ(user(read({{"question", "Is it? Please answer yes or no."}, {"answer", "Yes"}}, "pope")),
            "Is it? Please answer yes or no.");
  const Question math = read({{"question", "How long?"},
                              {"unit", "m"},
                              {"choices", nullptr},
                              {"answer", "3"},
                              {"image", "images/1.jpg"},
                              {"decoded_image", {{"bytes", bytes("one")}, {"path", "1.jpg"}}},
                              {"metadata", {{"task", "geometry"}}}});
  EXPECT_EQ(user(math), std::string("How long? (Unit: m)") + by_phrase);
  EXPECT_THAT(contents(math), ElementsAre("one"));
  EXPECT_EQ(math.sample["source"], "geometry");
  EXPECT_THAT(why_not({{"question", "?"}, {"answers", nullptr}}), HasSubstr("it has no answer"));
  EXPECT_THAT(why_not({{"question", "?"}, {"answers", json::array()}}), HasSubstr("it has no answer"));
  EXPECT_THAT(why_not({{"answer", "a"}}), HasSubstr("'question' is missing"));
}

TEST(Columns, ImagesAreInTheFileOrNamed) {
  const std::string one = encode_base64(std::string(60, '1')), two = encode_base64(std::string(60, '2'));
  const auto media = [](json image) {
    return read({{"index", 5}, {"question", "?"}, {"answer", "a"}, {"image", std::move(image)}});
  };
  EXPECT_THAT(contents(media("['" + one + "', '" + two + "']")),
              ElementsAre(std::string(60, '1'), std::string(60, '2')));
  EXPECT_THAT(contents(media(json::array({one, "data:image/png;base64," + two}))), testing::SizeIs(2));
  EXPECT_EQ(media("val/a.jpg").media.front().path, "val/a.jpg");
  EXPECT_TRUE(media(nullptr).media.empty());
  const Question paths = read({{"question", "?"}, {"answer", "a"}, {"image_path", "['a.jpg', 'b.jpg']"}});
  ASSERT_EQ(paths.media.size(), 2);
  EXPECT_EQ(paths.media[1].path, "b.jpg");
  const std::string bad = std::string(80, 'a') + "*";
  EXPECT_EQ(media(bad).media.front().path, bad) << "no base64 is a path";
  EXPECT_THAT(why_not({{"question", "?"}, {"answer", "a"}, {"image", "data:image/png;base64,?"}}),
              HasSubstr("no base64"));
}

TEST(Columns, AShortImageIsThatOfAnotherRow) {
  const auto question = [](const char* image) {
    return read_columns({{{"index", "1000007"}, {"question", "?"}, {"answer", "a"}, {"image", image}},
                         "1",
                         "file",
                         {},
                         [](const std::string& index) -> std::optional<json> {
                           if (index != "7") return std::nullopt;
                           return json{{"index", "7"}, {"image", encode_base64(std::string(90, '7'))}};
                         }});
  };
  EXPECT_THAT(contents(question("7")), ElementsAre(std::string(90, '7')));
  EXPECT_EQ(question("8").media.front().path, "8") << "no row has this index";
}

TEST(Columns, PartsMayHaveOtherNames) {
  const Question question = read_columns({{{"query", "How much?"}, {"label", {"3"}}, {"img", "a.png"}},
                                          "0",
                                          "file",
                                          {{"question", "query"}, {"answer", "label"}, {"image", "img"}}});
  EXPECT_EQ(user(question), std::string("How much?") + by_phrase);
  EXPECT_EQ(question.sample["answers"], json::array({"3"}));
  EXPECT_EQ(question.media.front().path, "a.png");
}

} // namespace
} // namespace fvlm::evaluation
