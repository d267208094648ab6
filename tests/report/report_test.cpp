// The report: correct figures, nothing lost, no markup injected, whatever the folder contains.
#include "base/error.h"
#include "base/file.h"
#include "base/random.h"
#include "base/scratch_folder.h"
#include "data/media/write_image.h"
#include "markup.h"
#include "report/page.h"
#include "synthetic_run.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <gmock/gmock.h>
#include <map>
#include <set>

using namespace fvlm;
using namespace fvlm::report;
using fvlm::test::count;
using fvlm::test::read_markup;
using nlohmann::json;
using testing::ElementsAre;
using testing::HasSubstr;
namespace fs = std::filesystem;

namespace {

std::string page_of(const fs::path& run) {
  std::string page = read_file(write_report(run).file);
  EXPECT_EQ(read_markup(page).problem, "");
  return page;
}

// A run in two files.
void write_run(const fs::path& folder, const json& plan, const std::string& lines) {
  write_file_atomic(folder / "plan.json", plan.dump());
  write_file_atomic(folder / "metrics.jsonl", lines);
}

json plan_of(const json& stages) {
  return {{"format", "fvlm.plan/1"},
          {"hash", "0123456789abcdef"},
          {"recipe", "r.lua"},
          {"plan", {{"name", "n"}, {"stages", stages}}},
          {"sources", {{"name", "r.lua:1"}}}};
}

} // namespace

TEST(Report, EachPartOfTheTimeHasAColourOfItsOwnInEveryStage) {
  std::string lines;
  for (const char* stage : {"align", "prefer"}) {
    json line = {{"kind", "step"}, {"stage", stage}, {"step", 10}, {"samples", 320}, {"samples_per_second", 1}};
    for (const std::string& part : time_part_names())
      if (part != "evaluation" && (part != "reference" || stage == std::string("prefer"))) line["time." + part] = 1.5;
    for (int number = 0; number < 5; ++number) line[fmt::format("time.of_tomorrow_{}", number)] = 2;
    lines += line.dump() + "\n" +
             json({{"kind", "evaluation"}, {"stage", stage}, {"step", 10}, {"seconds", 3}}).dump() + "\n";
  }
  ScratchFolder run;
  write_run(run.path(), plan_of(json::array({{{"name", "align"}}, {{"name", "prefer"}}})), lines);
  const std::string page = page_of(run.path());
  std::map<std::string, std::string> colours; // by part, as the legend has it
  std::set<std::string> used;
  const std::string swatch = "<i class=\"swatch ";
  for (size_t at = 0; (at = page.find(swatch, at)) != page.npos;) {
    at += swatch.size();
    const size_t quote = page.find('"', at), name = page.find("</i>", at) + 4;
    const std::string colour = page.substr(at, quote - at);
    colours[page.substr(name, page.find('<', name) - name)] = colour;
    EXPECT_TRUE(used.insert(colour).second) << colour << " is used twice";
  }
  EXPECT_EQ(colours.size(), time_part_names().size() + 5 + 1) << "the known, the unknown, and the rest";
  for (const auto& [name, colour] : colours) {
    const size_t pieces = count(page, fmt::format("class=\"{}\" title=\"{}: ", colour, name));
    EXPECT_EQ(pieces, name == "reference" ? 1u : 2u) << name << " in the bars";
  }
  EXPECT_LT(page.find("</i>reference<"), page.find("</i>backward<")) << "in the order of a step";
  EXPECT_LT(page.find("</i>backward<"), page.find("</i>evaluation<"));
}

TEST(Report, OfAWholeRunMatchesItsFiles) {
  ScratchFolder run;
  test::make_run(run.path());
  auto made = write_report(run.path());
  std::string page = read_file(run / "report.html");
  auto markup = read_markup(page);
  EXPECT_EQ(markup.problem, "");
  EXPECT_EQ(made.bytes, page.size());
  EXPECT_LT(page.size(), 400000u) << "the quickstart's report";
  EXPECT_THAT(made.notes, ElementsAre());
  for (const char* words :
       {"quickstart", "3 of 3", "121,600", "the run is complete", "95.8\u202f%", "2,000 held-out samples",
        "first colour", "240,192", "52.7\u202f% trained", "0.0001, others 1.25e-5", "out of memory", "the loss 3.",
        "recipes/quickstart.lua:25", "Which colour does the circle have at the end?", "✗ wrong choice",
        "✓ right choice", "✓ right", "next token of answers", "reward accuracy"})
    EXPECT_THAT(markup.text, HasSubstr(words));
  EXPECT_EQ(count(page, "class=\"heat\""), 8u * 4);
  EXPECT_EQ(count(page, "class=\"flag "), 3u);
  EXPECT_EQ(count(page, "✗ wrong"), 1u);
  // The figures once more, by hand.
  double seconds = 0, samples = 0, tail = 0;
  int lines = 0;
  std::vector<double> losses;
  for (std::string rest = read_file(run / "metrics.jsonl"); !rest.empty(); rest.erase(0, rest.find('\n') + 1)) {
    json line = json::parse(rest.substr(0, rest.find('\n')));
    if (line["kind"] != "step" || line["stage"] != "align") continue;
    seconds += (line["samples"].get<double>() - samples) / line["samples_per_second"].get<double>();
    samples = line["samples"];
    losses.push_back(line["loss"]);
    ++lines;
  }
  ASSERT_EQ(lines, 200);
  for (size_t i = 190; i < 200; ++i) tail += losses[i] / 10;
  EXPECT_NEAR(made.figures[0].seconds, seconds, 1e-9);
  EXPECT_NEAR(*made.figures[0].last_loss, tail, 1e-9);
  EXPECT_THAT(markup.text, HasSubstr(fmt::format("{:.3f}", tail)));
}

TEST(Report, IsSelfContained) {
  ScratchFolder run;
  test::make_run(run.path());
  std::string page = page_of(run.path());
  for (const char* foreign :
       {"http:", "https:", "url(", "@import", "fetch(", "XMLHttp", "import(", "WebSocket", "sendBeacon"})
    EXPECT_EQ(count(page, foreign), 0u) << foreign;
  EXPECT_THAT(page, HasSubstr("default-src 'none'"));
  EXPECT_THAT(page, HasSubstr("prefers-color-scheme: dark"));
}

TEST(Report, OfAKilledOrRunningRunShowsProgress) {
  ScratchFolder run;
  test::make_run(run.path(), {.stages = 2, .last_progress = 0.4});
  std::string lines = read_file(run / "metrics.jsonl");
  write_file_atomic(run / "metrics.jsonl", lines + R"({"kind":"step","stage":"instr)");
  auto made = write_report(run.path());
  auto markup = read_markup(read_file(made.file));
  EXPECT_EQ(markup.problem, "");
  EXPECT_THAT(markup.text, HasSubstr("1 of 3"));
  EXPECT_THAT(markup.text, HasSubstr("instruct at step 600 of 1,500"));
  EXPECT_THAT(markup.text, HasSubstr("under way"));
  EXPECT_THAT(markup.text, HasSubstr("not begun"));
  EXPECT_THAT(made.notes, testing::Contains(HasSubstr("the last line of metrics.jsonl is not whole")));
}

TEST(Report, NeedsOnlyAPlan) {
  ScratchFolder run;
  write_run(run.path(), plan_of(json::array({{{"name", "align"}, {"steps", 10}}})), "");
  auto made = write_report(run.path());
  auto markup = read_markup(read_file(made.file));
  EXPECT_EQ(markup.problem, "");
  EXPECT_THAT(markup.text, HasSubstr("0 of 1"));
  EXPECT_THAT(made.notes, ElementsAre(HasSubstr("parameters.json"), HasSubstr("no samples")));
  EXPECT_THAT(markup.text, HasSubstr("parameters.json is not there"));
}

TEST(Report, IgnoresUnknownLines) {
  ScratchFolder run;
  auto stages = json::array({{{"name", "align"}, {"steps", 20}, {"later", {1, {{"a", nullptr}}}}}});
  std::string lines =
      R"({"kind":"step","stage":"align","step":10,"loss":2.5,"new_value":1,"words":["a"],"nested":{"x":1}}
{"kind":"of tomorrow","stage":"align","step":10,"loss":7}
not json
[1,2]
{"kind":"step","stage":"unplanned","step":5,"loss":null,"samples":"many"}
{"kind":"step","stage":"align","step":20,"loss":1.25,"samples":40}
)";
  write_run(run.path(), plan_of(stages), lines);
  auto made = write_report(run.path());
  EXPECT_EQ(read_markup(read_file(made.file)).problem, "");
  EXPECT_THAT(made.notes,
              testing::Contains(HasSubstr("2 of 6 lines of metrics.jsonl could not be read; the first is line 3")));
  ASSERT_EQ(made.run.stages.size(), 2u);
  EXPECT_EQ(made.run.stages[1].name, "unplanned");
  EXPECT_TRUE(made.figures[0].done);
  EXPECT_EQ(made.figures[0].first_loss, 2.5);
}

// A run begun by an earlier version and resumed by this one.
TEST(Report, ReadsTokensUnderTheirEarlierName) {
  std::string lines =
      R"({"kind":"step","stage":"align","step":10,"samples":32,"tokens":700,"tokens_per_second":70,"frames":64}
)";
  ScratchFolder run;
  write_run(run.path(), plan_of(json::array({{{"name", "align"}}})), lines);
  const auto earlier = write_report(run.path());
  EXPECT_EQ(earlier.figures[0].text_tokens, 700);
  EXPECT_EQ(earlier.figures[0].decoder_tokens, std::nullopt);
  EXPECT_THAT(read_markup(read_file(earlier.file)).text, HasSubstr("700 text tokens, 64 frames"));
  lines +=
      R"({"kind":"step","stage":"align","step":20,"samples":64,"text_tokens":1500,"decoder_tokens":1628,"frames":128}
)";
  write_run(run.path(), plan_of(json::array({{{"name", "align"}}})), lines);
  const auto resumed = write_report(run.path());
  EXPECT_EQ(resumed.figures[0].text_tokens, 1500);
  EXPECT_EQ(resumed.figures[0].decoder_tokens, 1628);
  const auto& columns = resumed.run.stages[0].lines.columns;
  EXPECT_THAT(columns.at("text_tokens"), ElementsAre(700, 1500));
  EXPECT_FALSE(columns.contains("tokens"));
}

TEST(Report, EscapesMarkupFromEveryFile) {
  const std::string evil = "</script><img src=x onerror=alert(1)>\"'&{{title}}";
  ScratchFolder run;
  test::make_run(run.path());
  json plan = json::parse(read_file(run / "plan.json"));
  plan["plan"]["name"] = evil;
  plan["recipe"] = evil;
  plan["hash"] = evil;
  plan["plan"][evil] = evil;
  plan["sources"][fmt::format("[\"{}\"]", evil)] = evil;
  plan["plan"]["stages"].push_back({{"name", evil}, {"objective", json::array({{{"kind", evil}}})}});
  plan["plan"]["stages"].push_back({{"name", "../.."}});
  std::string lines;
  for (int step : {1, 2}) {
    lines += json({{"kind", "step"},
                   {"stage", evil},
                   {"step", step},
                   {"loss", 1},
                   {"lr." + evil, 1},
                   {"time." + evil, 1},
                   {"term." + evil, 1},
                   {"term.b", 2}})
                 .dump() +
             "\n";
    lines += json({{"kind", "evaluation"},
                   {"stage", evil},
                   {"step", step},
                   {"set", evil},
                   {"mode", evil},
                   {"measure", evil},
                   {"accuracy", 0.5},
                   {"accuracy." + evil, 0.5}})
                 .dump() +
             "\n";
    lines += json({{"kind", "event"}, {"stage", evil}, {"step", step}, {"what", evil}, {"text", evil}}).dump() + "\n";
  }
  write_run(run.path(), plan, lines);
  write_file_atomic(run / "parameters.json",
                    json::array({{{"stage", evil}, {"groups", {{{"name", evil}, {"parameters", 3}}}}}}).dump());
  fs::path show = run / "instruct/show/questions";
  json sample = json::parse(read_file(show / "001.json"));
  for (const char* key : {"set", "stage", "source", "question", "expected", "answer"}) sample[key] = evil;
  sample["options"] = json::array({{{"text", evil}, {"loss", 1}}, {{"text", evil}, {"right", true}, {"loss", "x"}}});
  write_file_atomic(show / "001.json", sample.dump());
  std::string page = page_of(run.path());
  EXPECT_EQ(count(page, "<img src=x"), 0u);
  EXPECT_GT(count(page, "&lt;img src=x"), 20u) << "shown as text";
  EXPECT_EQ(count(page, "<script"), count(page, "</script>"));
}

TEST(Report, ShowsFramesFromBesideTheSampleOnly) {
  ScratchFolder run;
  test::make_run(run.path());
  fs::path show = run / "instruct/show/questions";
  write_file_atomic(run / "secret.png", "\x89PNG\r\n\x1a\n the secret");
  write_file_atomic(show / "text.png", "no image");
  for (const char* name : {"../../../secret.png", "/etc/hostname", "text.png", "missing.png"}) {
    json sample = json::parse(read_file(show / "000.json"));
    sample["frames"] = {name};
    write_file_atomic(show / "000.json", sample.dump());
    auto made = write_report(run.path());
    EXPECT_EQ(made.notes.size(), 1u) << name;
    std::string page = read_file(made.file);
    EXPECT_EQ(count(page, "src=\"data:image/png;base64,"), 7u * 4 * 2)
        << name << ": those of the others and their heat maps";
  }
}

TEST(Report, ScalesLargeFramesDown) {
  ScratchFolder run;
  test::make_run(run.path());
  fs::path show = run / "instruct/show/questions";
  Image noise{224, 224, {}};
  RandomStream random(3, "noise");
  for (uint64_t i = 0; i < 224 * 224 * 3; ++i) noise.rgb.push_back(static_cast<uint8_t>(100 + 20 * random.uniform(i)));
  std::string png = write_png(noise);
  ASSERT_GT(png.size(), 80000u);
  write_file_atomic(show / "000-0.png", png);
  size_t before = page_of(run.path()).size();
  EXPECT_LT(before, 300000u);
  EXPECT_EQ(count(read_file(run / "report.html"), "<img alt=\"frame 1\" src=\"data:image/jpeg;base64,"), 1u);
  EXPECT_EQ(count(read_file(run / "report.html"), "<img class=\"few\" alt=\"frame 1\" src=\"data:image/png;base64,"),
            7u);
}

// What a full disk, another program or a later version might have left: values of other types, anywhere.
TEST(Report, SurvivesValuesOfAnyType) {
  ScratchFolder run;
  test::make_run(run.path(), {.stages = 2});
  static const json others[] = {nullptr,
                                true,
                                -1,
                                1e308,
                                18446744073709551615u,
                                "",
                                "text",
                                json::array(),
                                json::array({1, "a", nullptr}),
                                json::object(),
                                {{"a", {{"b", 1}}}}};
  std::vector<std::pair<fs::path, std::string>> files;
  for (const auto& name : {"plan.json", "parameters.json", "instruct/show/questions/001.json"})
    files.emplace_back(run / name, read_file(run / name));
  std::string metrics = read_file(run / "metrics.jsonl");
  std::string some = metrics.substr(0, metrics.find('\n', 20000) + 1) +
                     metrics.substr(metrics.rfind("\n{\"kind\":\"evaluation\"") + 1);
  RandomStream random(11, "report");
  uint64_t drawn = 0;
  auto pick = [&](size_t size) { return static_cast<size_t>(random.uniform(drawn++) * static_cast<double>(size)); };
  auto spoil = [&](json document, int times) {
    for (int i = 0; i < times; ++i) {
      auto flat = document.flatten();
      auto at = flat.begin();
      std::advance(at, static_cast<long>(pick(flat.size())));
      auto pointer = json::json_pointer(at.key());
      while (!pointer.empty() && pick(3) == 0) pointer = pointer.parent_pointer();
      if (!pointer.empty()) document[pointer] = others[pick(std::size(others))];
    }
    return document;
  };
  for (int round = 0; round < 120; ++round) {
    for (const auto& [path, content] : files)
      write_file_atomic(path, spoil(json::parse(content), 1 + round % 5).dump());
    std::string lines;
    for (size_t at = 0, end; (end = some.find('\n', at)) != some.npos; at = end + 1) {
      std::string line = some.substr(at, end - at);
      lines += (pick(4) == 0 ? spoil(json::parse(line), 1).dump() : line) + "\n";
    }
    write_file_atomic(run / "metrics.jsonl", lines);
    try {
      std::string page = page_of(run.path());
      ASSERT_EQ(count(page, "nan") + count(page, ">inf<"), 0u) << "round " << round;
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::data);
      EXPECT_THAT(error.text(), HasSubstr("not the plan of a run")) << "round " << round;
    }
  }
}

TEST(Report, RefusesWhatIsNoRun) {
  ScratchFolder folder;
  auto refused = [](const fs::path& run) {
    try {
      write_report(run);
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::data);
      return error.text();
    }
    return std::string("not refused");
  };
  EXPECT_THAT(refused(folder.path()), HasSubstr("it has no plan.json"));
  EXPECT_THAT(refused(folder / "absent"), HasSubstr("fvlm-engine train"));
  fs::create_directories(folder / "mine");
  write_run(folder / "mine", plan_of(json::array()), "");
  EXPECT_THAT(refused(folder.path()), HasSubstr("did you mean"));
  fs::remove(folder / "mine/metrics.jsonl");
  EXPECT_THAT(refused(folder / "mine"), HasSubstr("it has no metrics.jsonl"));
}
