// Templates rendered here and by transformers: equal bytes, equal spans of the assistant's text, and errors where
// transformers ends with one.
#include "base/error.h"
#include "base/file.h"
#include "jinja/template.h"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <cstdlib>
#include <filesystem>
#include <map>
#include <unistd.h>

namespace fvlm::jinja {
namespace {

using Json = nlohmann::ordered_json;

// The oracle's clock: Friday, 7 March 2025, 15:04:05.
std::tm oracle_now() {
  std::tm now{};
  now.tm_year = 125, now.tm_mon = 2, now.tm_mday = 7, now.tm_hour = 15, now.tm_min = 4, now.tm_sec = 5;
  now.tm_wday = 5, now.tm_yday = 65;
  return now;
}

std::vector<Json> oracle_cases(const std::string& kind) {
  const auto file = std::filesystem::temp_directory_path() / fmt::format("fvlm-jinja-{}-{}.json", kind, getpid());
  const std::string command = fmt::format("{} {} {} {}", FVLM_PYTHON, FVLM_JINJA_ORACLE, kind, file.string());
  if (std::system(command.c_str()) != 0) throw std::runtime_error("failed: " + command);
  const Json cases = Json::parse(read_file(file));
  std::filesystem::remove(file);
  return {cases.begin(), cases.end()};
}

Rendered render(const Json& one) {
  Variables variables;
  for (const auto& [name, value] : one.at("variables").items()) variables.emplace_back(name, from_json(value));
  return Template(one.at("template").get<std::string>(), one.at("name").get<std::string>())
      .render(variables, oracle_now());
}

// What is rendered, or the error's text.
struct Outcome {
  std::optional<Rendered> rendered;
  std::string error;
};

Outcome outcome(const Json& one) {
  try {
    return {render(one), ""};
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::data) << error.text();
    EXPECT_TRUE(error.where().starts_with(one.at("name").get<std::string>() + ":")) << error.text();
    return {std::nullopt, error.text()};
  }
}

void expect_equal(const Json& one, const Outcome& found) {
  const auto name = one.at("name").get<std::string>(), source = one.at("template").get<std::string>();
  if (one.at("expected").is_null()) {
    EXPECT_FALSE(found.rendered) << name << " should fail with " << one.at("error") << "\n"
                                 << source.substr(0, 300) << "\ngave: " << found.rendered->text.substr(0, 300);
    return;
  }
  ASSERT_TRUE(found.rendered) << name << ": " << found.error << "\n" << source.substr(0, 300);
  EXPECT_EQ(found.rendered->text, one.at("expected").get<std::string>()) << name;
  const auto spans = one.at("generations").get<std::vector<std::pair<size_t, size_t>>>();
  if (!spans.empty()) {
    EXPECT_EQ(found.rendered->generations, spans) << name;
  }
}

TEST(JinjaOracle, PublicChatTemplatesRenderAsInTransformers) {
  std::map<std::string, int> rendered;
  for (const Json& one : oracle_cases("chat")) {
    expect_equal(one, outcome(one));
    const auto name = one.at("name").get<std::string>();
    rendered[name.substr(0, name.find('/'))] += !one.at("expected").is_null();
  }
  EXPECT_GE(rendered.size(), 20u);
  for (const auto& [form, count] : rendered) EXPECT_GE(count, 20) << form << " is hardly compared";
}

TEST(JinjaOracle, PiecesOfTheLanguageMeanWhatTheyMeanInJinja) {
  for (const Json& one : oracle_cases("snippets")) expect_equal(one, outcome(one));
}

// What this interpreter does not support it may refuse, but it never renders something else, and never what Jinja
// refuses.
TEST(JinjaOracle, DamagedTemplatesEndWithTheSameResultOrWithAnError) {
  int both = 0, refused_here = 0;
  for (const Json& one : oracle_cases("mutated")) {
    const Outcome found = outcome(one);
    if (found.rendered || one.at("expected").is_null())
      expect_equal(one, found), both += found.rendered.has_value();
    else
      ++refused_here;
  }
  EXPECT_GE(both, 100);
  EXPECT_LE(refused_here, 10);
}

} // namespace
} // namespace fvlm::jinja
