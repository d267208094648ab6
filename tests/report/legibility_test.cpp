// Legibility of charts: distinguishable colours, labels that do not overlap.
#include "markup.h"
#include "report/chart.h"
#include "report/html.h"

#include <fmt/format.h>

#include <array>
#include <cmath>
#include <gmock/gmock.h>
#include <set>

using testing::HasSubstr;
using testing::Not;

namespace fvlm::report {

extern const std::string_view style_css; // page/

namespace {

// Distance of two colours "#rrggbb" in OKLab, where 0.02 can just be seen.
double distance_in_oklab(const std::string& one, const std::string& other) {
  const auto lab = [](const std::string& colour) {
    std::array<double, 3> rgb{};
    for (size_t i = 0; i < 3; ++i) {
      const double value = std::stoi(colour.substr(1 + 2 * i, 2), nullptr, 16) / 255.0;
      rgb[i] = value <= 0.04045 ? value / 12.92 : std::pow((value + 0.055) / 1.055, 2.4);
    }
    const double l = std::cbrt(0.4122214708 * rgb[0] + 0.5363325363 * rgb[1] + 0.0514459929 * rgb[2]);
    const double m = std::cbrt(0.2119034982 * rgb[0] + 0.6806995451 * rgb[1] + 0.1073969566 * rgb[2]);
    const double s = std::cbrt(0.0883024619 * rgb[0] + 0.2817188376 * rgb[1] + 0.6299787005 * rgb[2]);
    return std::array{0.2104542553 * l + 0.7936177850 * m - 0.0040720468 * s,
                      1.9779984951 * l - 2.4285922050 * m + 0.4505937099 * s,
                      0.0259040371 * l + 0.7827717662 * m - 0.8086757660 * s};
  };
  const auto a = lab(one), b = lab(other);
  return std::hypot(a[0] - b[0], a[1] - b[1], a[2] - b[2]);
}

TEST(Colours, OfThePaletteCanBeToldApartInLightAndDark) {
  std::array<std::vector<std::string>, 2> palettes; // light, dark
  const std::string style(style_css);
  for (int number = 0; number <= 18; ++number) {
    const std::string name = number == 0 ? "--rest: #" : fmt::format("--p{}: #", number);
    ASSERT_EQ(test::count(style, name), 2u) << name;
    palettes[0].push_back(style.substr(style.find(name) + name.size() - 1, 7));
    palettes[1].push_back(style.substr(style.rfind(name) + name.size() - 1, 7));
  }
  for (const auto& palette : palettes)
    for (size_t i = 0; i < palette.size(); ++i)
      for (size_t j = 0; j < i; ++j)
        EXPECT_GT(distance_in_oklab(palette[i], palette[j]), 0.06) << palette[i] << " and " << palette[j];
}

TEST(Colours, EachNumberHasOneOfItsOwnAndARule) {
  const std::string style = std::string(style_css) + further_colours();
  std::set<std::string> classes, rules;
  for (int number = 1; number <= 64; ++number) {
    const std::string name = colour_class(number), selector = fmt::format(".{} {{", name);
    classes.insert(name);
    ASSERT_EQ(test::count(style, selector), 1u) << name;
    const size_t begin = style.find(selector) + selector.size();
    rules.insert(style.substr(begin, style.find('}', begin) - begin));
  }
  EXPECT_EQ(classes.size(), 64u);
  EXPECT_EQ(rules.size(), 64u);
}

TEST(Chart, NoLabelOfTheStepsHidesAnother) {
  Chart chart;
  chart.title = "Loss";
  chart.stages = {{"align", 0, 2250}};
  chart.lines = {{"loss", 1, false, false, {10, 2250}, {4, 1}}};
  const std::string html = chart_html(chart);
  const std::string axis = html.substr(html.find("<div class=\"x\">"));
  EXPECT_THAT(axis, HasSubstr(">2,000</span></div>"));
  EXPECT_THAT(axis.substr(0, axis.find("</div>")), Not(HasSubstr("step"))) << "it stands beside the axis";
  EXPECT_THAT(html, HasSubstr("<div class=\"unit\">step</div>"));
  chart.stages[0].end = 3000;
  EXPECT_THAT(chart_html(chart), HasSubstr("<span class=\"last\">3,000</span>"))
      << "a middle would reach beyond the chart";
  chart.stages[0].end = 500000;
  EXPECT_THAT(chart_html(chart), HasSubstr(">200\u202fK</span>")) << "seven of 200,000 would touch on a phone";
}

TEST(Chart, ANameOfAStageIsWholeWhereThereIsRoomBesideIt) {
  Chart chart;
  chart.title = "Learning rate";
  chart.lines = {{"lr", 1, false, false, {10, 5800}, {4, 1}}};
  chart.stages = {{"align", 0, 3250}, {"instruct", 3250, 5500}, {"prefer", 5500, 5800}};
  EXPECT_THAT(chart_html(chart), HasSubstr("<span class=\"last\">prefer</span>"));
  EXPECT_THAT(chart_html(chart), Not(HasSubstr("class=\"short\"")));
  chart.stages = {{"first", 0, 100}, {"second", 100, 200}, {"instruct", 200, 5800}};
  EXPECT_EQ(test::count(chart_html(chart), "class=\"short\""), 2u) << "they would touch";
  EXPECT_THAT(chart_html(chart), HasSubstr("\">instruct</span>"));
}

} // namespace
} // namespace fvlm::report
