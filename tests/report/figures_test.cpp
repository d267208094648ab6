// What the report is made of: figures, numbers and text as HTML, charts and heat maps.
#include "data/media/decode_image.h"
#include "markup.h"
#include "report/chart.h"
#include "report/figures.h"
#include "report/heat_map.h"
#include "report/html.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <cmath>
#include <gmock/gmock.h>
#include <limits>

namespace fvlm::report {
namespace {

using nlohmann::json;
using test::count;
using test::read_markup;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;

constexpr double nothing = std::numeric_limits<double>::quiet_NaN();

TEST(Figures, AreComputedFromTheLines) {
  Stage stage;
  stage.name = "align";
  stage.steps = 30;
  stage.lines.steps = {10, 20, 30};
  stage.lines.columns = {{"loss", {4, nothing, 1}},
                         {"samples", {320, 640, 960}},
                         {"samples_per_second", {160, 320, 64}}, // 2, 1 and 5 seconds
                         {"data_wait_share", {0.1, 0.2, 0.6}},
                         {"memory_bytes", {5, 9, 7}},
                         {"device_memory_bytes", {nothing, 8, 6}},
                         {"time.backward", {1, 0.5, 2}},
                         {"time.data", {0.5, nothing, 1}},
                         {"time.of_tomorrow", {0, 0, 1}}};
  auto figures = figures_of(stage);
  EXPECT_TRUE(figures.done);
  EXPECT_EQ(figures.step, 30);
  EXPECT_DOUBLE_EQ(figures.seconds, 8);
  EXPECT_DOUBLE_EQ(*figures.samples_per_second, 120);
  EXPECT_EQ(figures.first_loss, 4);
  EXPECT_EQ(figures.last_loss, 1);
  EXPECT_NEAR(*figures.data_wait, 0.3, 1e-12);
  EXPECT_EQ(figures.memory_bytes, 9);
  EXPECT_EQ(figures.device_memory_bytes, 8);
  std::vector<std::string> parts;
  for (const auto& part : figures.parts) parts.push_back(fmt::format("{} {}", part.name, part.seconds));
  EXPECT_THAT(parts, ElementsAre("data 1.5", "backward 3.5", "of_tomorrow 1", "other 2"));
}

TEST(Figures, AFirstLossNamesTheStepsItIsTheMeanOf) {
  const auto steps_of = [](std::vector<int64_t> steps, std::vector<double> losses,
                           std::optional<int64_t> log_every = 10) {
    Stage stage;
    stage.log_every = log_every;
    stage.lines.steps = std::move(steps);
    stage.lines.columns = {{"loss", std::move(losses)}};
    return figures_of(stage).first_loss_steps.text();
  };
  EXPECT_EQ(steps_of({10, 20}, {4, 2}), "steps 1-10");
  EXPECT_EQ(steps_of({7}, {4}), "steps 1-7") << "a stage of seven steps";
  EXPECT_EQ(steps_of({1, 2}, {4, 2}, 1), "step 1");
  EXPECT_EQ(steps_of({10, 20}, {nothing, 2}), "steps 11-20");
  EXPECT_EQ(steps_of({1510, 1520}, {4, 2}), "steps 1,501-1,510") << "the lines before were lost";
  EXPECT_EQ(steps_of({25}, {4}, {}), "steps 1-25");
}

TEST(Figures, TheStepsOfFirstLossesStandInTheHeaderWhereTheyAreTheSame) {
  StageFigures ten, seven, none;
  ten.first_loss = seven.first_loss = 1;
  ten.first_loss_steps = {1, 10};
  seven.first_loss_steps = {1, 7};
  const FirstLossLabel same({ten, none, ten}), several({ten, seven}), unknown({none});
  EXPECT_EQ(same.header, "loss, steps 1-10");
  EXPECT_EQ(same.beside(ten), "");
  EXPECT_EQ(several.header, "loss at first");
  EXPECT_EQ(several.beside(ten), "steps 1-10");
  EXPECT_EQ(several.beside(seven), "steps 1-7");
  EXPECT_EQ(unknown.header, "loss at first");
  EXPECT_EQ(unknown.beside(none), "");
}

TEST(Figures, SmoothingKeepsAConstantAndSkipsGaps) {
  for (double value : smoothed({2, 2, nothing, 2, 2, 2, 2, nothing, nothing, 2}, 5))
    EXPECT_TRUE(std::isnan(value) || value == 2) << value;
  std::vector<double> ramp(60), noisy(60);
  for (size_t i = 0; i < ramp.size(); ++i) ramp[i] = static_cast<double>(i), noisy[i] = i % 2 ? 1 : -1;
  auto smooth = smoothed(ramp, 4);
  for (size_t i = 0; i < 56; ++i) EXPECT_NEAR(smooth[i], ramp[i], 1e-12) << "both sides count alike";
  EXPECT_LT(std::abs(smoothed(noisy, 4)[40]), 0.1);
  EXPECT_THAT(smoothed({3, 9, 4}, 0), ElementsAre(3, 9, 4));
  EXPECT_THAT(smoothed({}, 4), ElementsAre());
}

TEST(Html, EscapesTextAndReplacesInvalidText) {
  EXPECT_EQ(escaped("<a href=\"x\">'&</a>"), "&lt;a href=&quot;x&quot;&gt;&#39;&amp;&lt;/a&gt;");
  EXPECT_EQ(escaped("ä€😀"), "ä€😀");
  EXPECT_EQ(escaped(std::string("a\0b\x1b\x7f", 5)), "a\uFFFDb\uFFFD\uFFFD");
  EXPECT_EQ(escaped("\xff\xc0\xaf\xed\xa0\x80\xe2\x82"), "\uFFFD\uFFFD\uFFFD\uFFFD\uFFFD\uFFFD\uFFFD\uFFFD");
  EXPECT_EQ(json::parse(script_string("</script>&\"\\\n\xff😀")), "</script>&\"\\\n\uFFFD😀");
  EXPECT_THAT(script_string("</script><!--"), Not(HasSubstr("<")));
}

TEST(Html, FormatsNumbersShortAndExact) {
  EXPECT_EQ(figure(0.84312), "0.8431");
  EXPECT_EQ(figure(12345.6), "12,346");
  EXPECT_EQ(figure(2e-5), "2e-5");
  EXPECT_EQ(figure(-1.5e300), "-1.5e300");
  EXPECT_EQ(figure(nothing), "–");
  EXPECT_EQ(percent(0.984), "98.4\u202f%");
  EXPECT_EQ(short_count(2.6e6), "2.6\u202fM");
  EXPECT_EQ(short_count(999.7), "1\u202fK");
}

TEST(Chart, KeepsSpikesOfManyPoints) {
  Chart chart;
  chart.title = "Loss";
  ChartLine line{"loss", 1, true, false, {}, {}};
  for (int i = 0; i < 100000; ++i) line.x.push_back(i), line.y.push_back(i == 43217 ? 77 : 1 + 1e-3 * (i % 7));
  chart.lines = {line};
  std::string html = chart_html(chart);
  EXPECT_THAT(html, HasSubstr(",77,"));
  EXPECT_LT(html.size(), 30000u);
  EXPECT_EQ(read_markup(html).problem, "");
}

TEST(Chart, RolledBackRunIsDrawnAsTwoLines) {
  Chart chart;
  chart.lines = {{"loss", 1, false, false, {10, 20, 30, 20, 30, 40}, {5, 4, 9, 3, 2, 1}}};
  std::string html = chart_html(chart);
  std::string path = html.substr(html.find("<path class=\"line"));
  path.erase(path.find("/>"));
  EXPECT_EQ(count(path, "M"), 2u) << path;
  EXPECT_EQ(count(path, "L"), 4u) << path;
}

TEST(Chart, EventsAfterTheLastLineAreInside) {
  Chart chart{.title = "c", .lines = {{.name = "loss", .x = {10, 20}, .y = {2, 1}}}, .stages = {{"align", 0, 20}}};
  chart.flags = {{25, "nonfinite", "at step 25", "event-1"}};
  EXPECT_THAT(chart_html(chart), HasSubstr(R"(href="#event-1" style="left:100.00%")"));
}

TEST(Chart, SinglePointIsADot) {
  Chart chart{.title = "c", .lines = {{.name = "loss", .x = {1}, .y = {2}}}};
  EXPECT_THAT(chart_html(chart), HasSubstr("class=\"dot"));
  chart.lines[0].x.push_back(2), chart.lines[0].y.push_back(1);
  EXPECT_THAT(chart_html(chart), testing::Not(HasSubstr("class=\"dot")));
}

TEST(Chart, SurvivesNoPointsAndOddValues) {
  Chart chart;
  EXPECT_EQ(chart_html(chart), "");
  chart.lines = {{"x", 1, false, false, {1, 2}, {nothing, nothing}}};
  EXPECT_EQ(chart_html(chart), "");
  for (std::vector<double> y :
       {std::vector<double>{5, 5}, {0, 0}, {-1e300, 1e300}, {1e-320, 1}, {nothing, 3}, {INFINITY, 1}, {-5, 1000}})
    for (bool log : {true, false}) {
      chart.lines = {{"x", 1, false, true, {1, 2}, y}};
      chart.may_be_log = log;
      std::string html = chart_html(chart);
      EXPECT_THAT(html, HasSubstr("<svg")) << y[0];
      EXPECT_EQ(count(html, "nan") + count(html, "inf"), 0u) << html;
    }
}

TEST(HeatMap, IsAPngWithOnePixelPerCell) {
  auto decoded = [](const std::string& png) { return decode_image(std::as_bytes(std::span(png))); };
  std::vector<double> shares(6 * 300);
  for (size_t i = 0; i < shares.size(); ++i) shares[i] = static_cast<double>(i);
  Image image = decoded(heat_map_png(shares, 6, 300, 1799));
  EXPECT_EQ(image.height, 6);
  EXPECT_EQ(image.width, 300);
  EXPECT_EQ(decoded(heat_map_png({0, 0}, 1, 2, 0)).width, 2) << "a model that looked nowhere";
}

} // namespace
} // namespace fvlm::report
