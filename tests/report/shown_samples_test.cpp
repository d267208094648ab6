// The pictures of shown samples that suit the model: maps of a resampler's queries, tiles, and texts read in several
// ways.
#include "base/file.h"
#include "base/scratch_folder.h"
#include "data/media/write_image.h"
#include "markup.h"
#include "report/page.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <gmock/gmock.h>

namespace fvlm::report {
namespace {

using nlohmann::json;
using test::count;
using testing::AllOf;
using testing::HasSubstr;
using testing::Not;
namespace fs = std::filesystem;

// A run of one stage, "latents", with evaluations and shown samples.
class MadeRun {
 public:
  MadeRun() {
    const json stages = {{{"name", "latents"}, {"objective", {{{"kind", "next_token"}}}}}};
    write_file_atomic(folder_ / "plan.json", json({{"format", "fvlm.plan/1"},
                                                   {"hash", "01"},
                                                   {"recipe", "r.lua"},
                                                   {"plan", {{"name", "n"}, {"stages", stages}}},
                                                   {"sources", json::object()}})
                                                 .dump());
    evaluated("none", "none", "loss", json::object());
  }

  void show(const std::string& set, int number, json sample) {
    const fs::path show = folder_ / "latents" / "show" / set;
    fs::create_directories(show);
    sample.update({{"set", set}, {"stage", "latents"}, {"step", 4000}});
    for (const auto& frame : sample.value("frames", json::array()))
      write_file_atomic(show / frame.get<std::string>(),
                        write_png({8, 8, std::vector<uint8_t>(192, 90)}, PngContent::drawing));
    write_file_atomic(show / fmt::format("{:03}.json", number), sample.dump());
  }
  void evaluated(const std::string& set, const std::string& mode, const std::string& measure, json values) {
    json line = {{"kind", "evaluation"}, {"stage", "latents"}, {"step", 4000}, {"set", set}, {"mode", mode}};
    line["measure"] = measure;
    line.update(std::move(values));
    lines_ += line.dump() + "\n";
    write_file_atomic(folder_ / "metrics.jsonl", lines_);
  }

  std::string page() const {
    const std::string page = read_file(write_report(folder_.path()).file);
    EXPECT_EQ(test::read_markup(page).problem, "");
    return page;
  }

 private:
  ScratchFolder folder_;
  std::string lines_;
};

json answer(const char* mode, const char* text, bool right) {
  return {{"mode", mode}, {"text", text}, {"right", right}};
}

const std::string source = "Context: Anna has the <red> kite.\nQuestion: What colour is Anna's kite?\n";

json read_as_bytes(const char* key) {
  return {{"key", key},         {"read_as_bytes", true},
          {"question", source}, {"expected", "red"},
          {"answer", "red"},    {"answers", {answer("latents", "red", true), answer("int4", "blue", false)}}};
}

json read_as_text(const char* key, const std::string& question, const char* text) {
  return {{"key", key},
          {"question", question},
          {"expected", "red"},
          {"answer", text},
          {"answers", {answer("latents", text, text == std::string("red"))}}};
}

TEST(ShownAnswers, OfOneQuestionStandSideBySideHoweverItIsRead) {
  MadeRun run;
  run.show("latents", 0, read_as_bytes("7"));
  run.show("text", 0, read_as_text("7", source + "Answer:", "red"));
  run.show("token_budget", 0, read_as_text("7", "Context: Anna has\nAnswer:", ""));
  const std::string page = run.page();
  EXPECT_EQ(count(page, "<table class=\"compared\">"), 1u);
  EXPECT_THAT(page, HasSubstr("<tr><th>source</th><th>expected</th><th>latents</th><th>latents int4</th><th>text</th>"
                              "<th>token budget</th></tr>"));
  EXPECT_THAT(page, HasSubstr("Context: Anna has the &lt;red&gt; kite."));
  EXPECT_THAT(page, HasSubstr("<td class=\"right\" data-reader=\"latents\">red <b>✓</b></td>"
                              "<td class=\"wrong\" data-reader=\"latents int4\">blue <b>✗</b></td>"
                              "<td class=\"right\" data-reader=\"text\">red <b>✓</b></td>"));
  EXPECT_THAT(page, HasSubstr("<i>nothing</i> <b>✗</b><small>reads “Context: Anna has\nAnswer:”</small>"));
  EXPECT_EQ(count(page, "class=\"sample\""), 0u) << "they need no card";
}

TEST(ShownAnswers, OfOtherQuestionsAreNotInItsRow) {
  MadeRun run;
  run.show("latents", 0, read_as_bytes("7"));
  json other = read_as_text("7", "Who?", "red");
  other["expected"] = "Anna"; // a sample of another shard
  run.show("text", 0, other);
  run.show("text", 1, read_as_text("8", "What?", "blue"));
  const std::string page = run.page();
  EXPECT_THAT(page, Not(HasSubstr("data-reader=\"text\"")));
  EXPECT_EQ(count(page, "class=\"sample\""), 2u);
  EXPECT_THAT(page, AllOf(HasSubstr("right\">✓ right"), HasSubstr("wrong\">✗ wrong"))) << "as the evaluation judged";
}

TEST(ShownAnswers, HaveATableOfFiguresOfTheirOwn) {
  MadeRun run;
  run.evaluated("latents", "int8", "answer",
                {{"accuracy", 0.8125},
                 {"f1", 0.84},
                 {"loss", 0.4567},
                 {"first_token_accuracy", 0.9},
                 {"latents", 8},
                 {"wire_bytes", 2176},
                 {"source_bytes", 181.25},
                 {"samples", 500}});
  run.evaluated("text", "latents", "answer", {{"accuracy", 0.99}, {"prompt_tokens", 61.5}, {"samples", 500}});
  const std::string page = run.page();
  const std::string table = page.substr(page.find("<h3>Generated answers</h3>"));
  for (const char* title : {"exact match", "F1", "NLL", "first token", "prompt tokens", "latents", "wire bytes"})
    EXPECT_THAT(table, HasSubstr(fmt::format("<th>{}</th>", title)));
  for (const char* value : {"<td>0.457</td>", "<td>2,176</td>", "<td>181.2</td>", "<td>61.5</td>", "<td>8</td>"})
    EXPECT_THAT(table, HasSubstr(value));
  EXPECT_THAT(table, Not(HasSubstr("<th>CIDEr</th>"))) << "nothing has it";
}

TEST(ShownImages, HaveAMapOfEachQueryOfAResampler) {
  MadeRun run;
  const json map = {0.1, 0.2, 0.3, 0.4}, other = {1, 0, 0, 0};
  run.show("questions", 0,
           {{"question", "What?"},
            {"answer", "a"},
            {"frames", {"000-0.png", "000-1.png"}},
            {"grid", {2, 2}},
            {"attention", {map, map}},
            {"query_attention", {{map, other, map}, {other, map, map}}}});
  std::string page = run.page();
  EXPECT_EQ(count(page, "class=\"heat\""), 2u * (1 + 3));
  EXPECT_EQ(count(page, "<div class=\"queries few\" style=\"--picture:url(data:image/png;base64,"), 2u);
  EXPECT_THAT(page, HasSubstr("where each of 3 queries looked"));
  run.show("questions", 0,
           {{"question", "What?"},
            {"answer", "a"},
            {"frames", {"000-0.png", "000-1.png"}},
            {"grid", {2, 2}},
            {"attention", {map, map}},
            {"query_attention", {{map}, 5, "x"}}});
  page = run.page();
  EXPECT_EQ(count(page, "class=\"heat\""), 2u) << "maps that are not those of the frames";
  EXPECT_THAT(page, Not(HasSubstr("queries looked")));
}

TEST(ShownImages, ThatWereCutLieAsTheyWere) {
  MadeRun run;
  json frames;
  for (int i = 0; i < 8; ++i) frames.push_back(fmt::format("000-{}.png", i));
  json sample = {{"question", "What?"}, {"answer", "a"}, {"frames", frames}, {"tiles", {{2, 3}, {0, 0}}}};
  run.show("questions", 0, sample);
  std::string page = run.page();
  const size_t begin = page.find("<div class=\"tiles\" style=\"--columns:3\">");
  ASSERT_NE(begin, page.npos);
  const std::string tiles = page.substr(begin, page.find("<figcaption>", begin) - begin);
  EXPECT_EQ(count(tiles, "<img"), 6u);
  EXPECT_THAT(page, HasSubstr("<figcaption>2 × 3 tiles</figcaption>"));
  EXPECT_EQ(count(page, "<figcaption>whole image"), 2u);
  sample["tiles"] = {{2, 2}, {0, 0}}; // of other frames
  run.show("questions", 0, sample);
  page = run.page();
  EXPECT_THAT(page, Not(HasSubstr("class=\"tiles\"")));
  EXPECT_EQ(count(page, "alt=\"frame"), 8u);
}

} // namespace
} // namespace fvlm::report
