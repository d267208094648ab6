// Retrieval samples: a query, what it is to find and what it is not, and errors in them.
#include "../media/gif.h"
#include "data/enclosing_tokens.h"
#include "sample_maker.h"

#include <gmock/gmock.h>

using namespace fvlm;
using namespace fvlm::test;
using testing::ElementsAre;
using testing::HasSubstr;
using Role = Sample::Role;

namespace {

Wanted with_negatives(std::optional<int64_t> negatives) {
  Wanted wanted = text_only();
  wanted.mix.negatives = negatives;
  return wanted;
}

std::vector<std::string> texts_of(const Sample& sample) {
  std::vector<std::string> all;
  for (const auto& input : sample.inputs) all.push_back(byte_tokenizer().decode(input->texts.at(0).ids));
  return all;
}

std::vector<Role> roles_of(const Sample& sample) {
  std::vector<Role> all;
  for (const auto& input : sample.inputs) all.push_back(input->role);
  return all;
}

std::string png() {
  const auto bytes = write_png(plain_image(4, 4, 9, 9, 9));
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

// A JSONL of one line, beside a picture.
struct OneLine {
  Folder folder;
  explicit OneLine(const std::string& line) {
    write_bytes(folder / "a.png", png());
    write_bytes(folder / "a.gif", gif_of(6, 5, {0, 1, 2}, 100)); // of three seconds
    write_bytes(folder / "lines.jsonl", line + "\n");
  }
  Sample measure(const Wanted& wanted = {}) const {
    const auto shard = Shard::open(folder / "lines.jsonl", {.cache = folder / "cache"});
    return SampleReader(wanted.mix, byte_tokenizer(), wanted.image_size, nullptr, wanted.visual_rows)
        .measure(*shard, shard->sample(0), wanted.source);
  }
  std::string refusal(const Wanted& wanted = {}) const {
    try {
      measure(wanted);
      return "";
    } catch (const Error& error) {
      return error.text();
    }
  }
};

std::string as_message(const std::string& text) { // up to where an answer would begin
  return with_system(fmt::format("<|im_start|>user\n{}<|im_end|>\n<|im_start|>assistant\n", text));
}

} // namespace

TEST(Inputs, AreTheColumnsOfSentenceTransformers) {
  const Sample sample =
      measure({{"json", R"({"anchor":"a cat","positive":"Cats purr.","negative":"Dogs bark."})"}}, text_only());
  EXPECT_TRUE(sample.texts.empty());
  EXPECT_THAT(roles_of(sample), ElementsAre(Role::query, Role::positive, Role::negative));
  EXPECT_THAT(texts_of(sample), ElementsAre("a cat", "Cats purr.", "Dogs bark."));
  int64_t rows = 0;
  for (const auto& input : sample.inputs) {
    EXPECT_THAT(input->texts[0].answer_mask, testing::Each(0));
    rows += input->rows();
  }
  EXPECT_EQ(sample.rows(), rows);
  EXPECT_EQ(sample.key, "clips/7");
}

TEST(Inputs, HaveAsManyNegativesAsTheMixReads) {
  const std::string numbered =
      R"({"query":"q","positive":"p","negative_1":"x","negative_2":"y","negatives":["z","w"]})";
  const std::string listed = R"({"query":"q","positive":"p","negative":["x","y"]})";
  EXPECT_THAT(texts_of(measure({{"json", numbered}}, with_negatives(3))), ElementsAre("q", "p", "x", "y", "z"));
  EXPECT_THAT(texts_of(measure({{"json", listed}}, with_negatives(8))), ElementsAre("q", "p", "x", "y"));
  EXPECT_THAT(texts_of(measure({{"json", listed}}, with_negatives({}))), ElementsAre("q", "p", "x"));
  EXPECT_THAT(texts_of(measure({{"json", listed}}, with_negatives(0))), ElementsAre("q", "p"));
}

TEST(Inputs, OfTurnsEndWhereAnAnswerWouldBegin) {
  const Sample sample =
      measure({{"json", R"({"query":[{"role":"system","content":"Find."},{"role":"user","content":"a cat"}],
      "positive":[{"role":"user","content":[{"type":"text","text":"Cats"}]}]})"}},
              text_only());
  EXPECT_THAT(texts_of(sample),
              ElementsAre(with_system("<|im_start|>user\na cat<|im_end|>\n<|im_start|>assistant\n", "Find."),
                          as_message("Cats")));
}

TEST(Inputs, ThePicturesOfASampleAreAPositiveWithoutFields) {
  Wanted wanted;
  wanted.source.fields = {{"query", "caption"}};
  const Sample sample = measure({{"json", R"({"caption":"a cat"})"}, {"png", png()}}, wanted);
  EXPECT_THAT(texts_of(sample), ElementsAre("a cat", as_message("")));
  EXPECT_EQ(sample.inputs[0]->frames, 0);
  EXPECT_EQ(sample.inputs[1]->frames, 1);
  EXPECT_EQ(sample.frames, 1);
  EXPECT_EQ(sample.distinct_frames(), 1);
}

TEST(Inputs, AGifIsWhatTheKeySays) {
  for (const auto& [line, frames] :
       {std::pair(R"({"image":"a.gif","user":"?","assistant":"x"})", 1),
        std::pair(R"({"messages":[{"role":"user","content":[{"type":"image","image":"a.gif"}]},
                     {"role":"assistant","content":"x"}]})",
                  1),
        std::pair(R"({"images":["a.gif","a.gif"],"user":"?","assistant":"x"})", 2),
        std::pair(R"({"file_name":"a.gif","user":"?","assistant":"x"})", 1),
        std::pair(R"({"video":"a.gif","user":"?","assistant":"x"})", 3)}) {
    std::string one(line);
    std::erase(one, '\n');
    EXPECT_EQ(OneLine(one).measure().frames, frames) << line;
  }
}

TEST(Inputs, NameTheirPictures) {
  for (const char* line :
       {R"({"query":"a cat","query_image":"a.png","positive":"Cats","positive_image":["a.png","a.png"]})",
        R"({"query":{"text":"a cat","image":"a.png"},"positive":{"text":"Cats","images":["a.png","a.png"]}})"}) {
    const Sample sample = OneLine(line).measure();
    EXPECT_THAT(texts_of(sample), ElementsAre(as_message("a cat"), as_message("Cats"))) << line;
    EXPECT_EQ(sample.inputs[0]->frames, 1) << line;
    EXPECT_EQ(sample.inputs[1]->frames, 2) << line;
    EXPECT_EQ(sample.frames, 3) << line;
  }
  const Sample alone =
      OneLine(R"({"query":"a cat","positive":{"bytes":null,"path":"a.png"},"negative":{"image":"a.png"}})").measure();
  EXPECT_THAT(roles_of(alone), ElementsAre(Role::query, Role::positive, Role::negative));
  EXPECT_EQ(alone.frames, 2);
  const Sample folder = OneLine(R"({"file_name":"a.png","query":"a cat","positive":null})")
                            .measure({.source = {.fields = {{"query", "query"}}}});
  EXPECT_EQ(folder.inputs[1]->frames, 1);
}

TEST(Inputs, PutPicturesWhereAMessageHasThem) {
  Wanted wanted;
  wanted.visual_rows = {.per_frame = 2, .in_place = true};
  const std::string line = R"({"query":{"text":"What?","image":"a.png"},"positive":[{"role":"user",
      "content":[{"type":"text","text":"Look: "},{"type":"image","image":"a.png"}]}]})";
  std::string flat = line;
  std::erase(flat, '\n');
  const Sample sample = OneLine(flat).measure(wanted);
  const auto spelled = [](const Sample& input) {
    return decode_with_placeholders(byte_tokenizer(), input.texts[0].ids);
  };
  EXPECT_THAT(spelled(*sample.inputs[0]), HasSubstr("user\n[2 visual rows]What?"));
  EXPECT_THAT(spelled(*sample.inputs[1]), HasSubstr("user\nLook: [2 visual rows]<|im_end|>"));
  EXPECT_EQ(sample.inputs[0]->texts[0].placeholders, 2);
}

TEST(Inputs, AreCutBeforeTheTokensBehindThem) {
  const auto tokens = EmbeddingTokens(byte_tokenizer());
  const auto whole = tokens.of("uvwxyz"), cut = tokens.of("uvwxyz", 4);
  EXPECT_EQ(whole.removed, 0);
  EXPECT_EQ(cut.removed, whole.ids.size() - 4);
  Wanted wanted = text_only();
  wanted.mix.max_text_tokens = 4;
  const std::string json = R"({"query":"uvwxyz","positive":"p"})";
  EXPECT_THAT(texts_of(measure({{"json", json}}, wanted)), ElementsAre("uvwx", "p"));
  EXPECT_EQ(measure({{"json", json}}, wanted).truncated_tokens, 2);
  wanted.mix.overlong = plan::Overlong::drop;
  EXPECT_THAT(measure({{"json", json}}, wanted).dropped,
              HasSubstr("'query': a text of 6 tokens, more than max_text_tokens = 4"));
  wanted.mix.overlong = plan::Overlong::truncate;
  const std::string turns = R"({"query":"q","positive":[{"role":"user","content":"p"}]})";
  EXPECT_THAT(measure({{"json", turns}}, wanted).dropped, HasSubstr("'positive': a text of"))
      << "its end is what is embedded";
}

TEST(Inputs, RefuseWhatIsNone) {
  const auto refused = [](const std::string& json) { return refusal({{"json", json}}, text_only()); };
  EXPECT_THAT(refused(R"({"query":"q","positive":7})"),
              HasSubstr("'positive' is a number, and a text, a list of turns or a picture was expected"));
  EXPECT_THAT(refused(R"({"query":"q","positive":" "})"),
              HasSubstr("'positive' is empty, and there is nothing to embed"));
  EXPECT_THAT(refused(R"({"query":"q","positive":{"colour":"red"}})"),
              HasSubstr("neither text, image, images, video, bytes nor a path"));
  EXPECT_THAT(refused(R"({"query":"q","positive":"p","negatives":["n",7]})"), testing::Not(HasSubstr("number 1")))
      << "it is not read";
  EXPECT_THAT(refused(R"({"query":"q","positive":"p","negatives":[7]})"),
              HasSubstr("number 0 of 'negatives' is a number"));
  EXPECT_THAT(refused(R"({"query":"q","positive":[{"role":"system","content":"p"}]})"),
              HasSubstr("'positive' has no turn but the system's"));
  EXPECT_THAT(refused(R"({"query":"q","positive":"p","positive_image":"a.png"})"),
              HasSubstr("names a picture, and in a shard of files clips/7.jpg alone is read"));
  Wanted mapped = text_only();
  mapped.source.fields = {{"query", "caption"}};
  EXPECT_THAT(refusal({{"json", R"({"caption":"a cat"})"}}, mapped),
              HasSubstr("'positive' is missing, and it has no picture either"));
  EXPECT_THAT(refusal({{"json", R"({"positive":"a cat"})"}}, mapped),
              HasSubstr("'caption' (by the recipe the query) is missing"));
  EXPECT_THAT(refusal({{"json", R"({"query":"q","positive":"p"})"}, {"png", png()}}), HasSubstr("says whose they are"));
  EXPECT_THAT(OneLine(R"({"query":"q","positive":"p","image":"a.png"})").refusal(), HasSubstr("query_image"));
  EXPECT_THAT(OneLine(R"({"query":"q","positive":{"image":"none.png"}})").refusal(), HasSubstr("none.png"));
}
