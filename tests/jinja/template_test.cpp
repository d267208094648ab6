// Errors of templates: where they are, what they say, and that a hostile template ends.
#include "base/error.h"
#include "base/exact_json.h"
#include "base/random.h"
#include "jinja/template.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <gmock/gmock.h>

namespace fvlm::jinja {
namespace {

std::string render(const std::string& source, const Variables& variables = {}, const Limits& limits = {}) {
  std::tm now{};
  now.tm_mday = 1;
  return Template(source, "chat.jinja").render(variables, now, limits).text;
}

std::string error_of(const std::string& source, const Limits& limits = {}) {
  try {
    render(source, {}, limits);
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::data);
    return error.text();
  }
  return "rendered";
}

TEST(Jinja, ErrorsNameFileLineAndConstruct) {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"a\nb\n{{ x.y }}", "chat.jinja:3: 'x' is undefined, so it has no 'y'"},
      {"{% if true %}\n{% for x in [1] %}\n", "chat.jinja:2: the block that begins here is not closed by {% endfor %}"},
      {"\n{% include 'other' %}", "chat.jinja:2: the tag {% include %} is not supported"},
      {"{% unheard %}", "chat.jinja:1: unknown tag {% unheard %}"},
      {"{% for x in [] recursive %}{% endfor %}", "chat.jinja:1: a recursive loop is not supported"},
      {"\n\n{{ 'x' | urlize }}", "chat.jinja:3: the filter 'urlize' is not supported"},
      {"{{ 'x' is escaped }}", "chat.jinja:1: the test 'escaped' is not supported"},
      {"{{ 'x'.encode() }}", "chat.jinja:1: the method encode of a str is not supported"},
      {"{{ [1].append(2) }}", "chat.jinja:1: the method append of a list is not supported\n  a template cannot change"},
      {"{{\n'%s' % 1 }}", "chat.jinja:2: formatting a string with % is not supported"},
      {"{{ 'É' | lower }}", "chat.jinja:1: lower of text beyond ASCII is not supported"},
      {"{{ raise_exception('no images') }}", "chat.jinja:1: the template refuses the conversation: no images"},
      {"{% set x = 'a' + 1 %}",
       "chat.jinja:1: operator + cannot take a str and a int\n  join text and other values with ~"},
      {"{{ f(*[1]) }}", "chat.jinja:1: arguments of '*' are not supported in a call"},
      {"{% macro f() %}{% generation %}x{% endgeneration %}{% endmacro %}{{ f() }}",
       "chat.jinja:1: {% generation %} inside of a macro"},
      {"{{ \"abc }}", "chat.jinja:1: a string is not closed"},
      {"{{ a ? b }}", "chat.jinja:1: unexpected character '?'"},
      {"{{ 9223372036854775807 + 1 }}", "chat.jinja:1: an integer has more than 64 bits"},
      {"{{ 99999999999999999999 }}", "chat.jinja:1: the number 99999999999999999999 is out of range"},
      {"{{ '99999999999999999999' | int }}", "chat.jinja:1: an integer has more than 64 bits"},
      {"{{ '-9223372036854775809' | int }}", "chat.jinja:1: an integer has more than 64 bits"},
      {"{{ '1e20' | int }}", "chat.jinja:1: an integer has more than 64 bits"},
      {"{{ '１２' | int }}", "chat.jinja:1: numbers in text beyond ASCII are not supported"},
      {"{{ (-8) ** (1 / 3) }}", "chat.jinja:1: complex numbers are not supported"},
      {"{{ '<' | e | e }}", "chat.jinja:1: the filter 'e' behind 'e' is not supported"},
      {"{{ '<' | safe | escape }}", "chat.jinja:1: the filter 'escape' behind 'safe' is not supported"},
      {"{% break %}", "chat.jinja:1: {% break %} is outside of a loop"},
      {"{% set ns = namespace(_x=1) %}", "chat.jinja:1: a namespace cannot hold '_x'"},
  };
  for (const auto& [source, message] : cases) EXPECT_THAT(error_of(source), testing::StartsWith(message)) << source;
}

TEST(Jinja, HostileTemplatesEndWithAnError) {
  const std::string doubling = "{% set ns = namespace(x='aaaaaaaaaaaaaaaa') %}{% for i in range(100) %}"
                               "{% set ns.x = ns.x ~ ns.x %}{% endfor %}";
  const std::string nested_list = "{% set ns = namespace(x=[]) %}{% for i in range(100000) %}"
                                  "{% set ns.x = [ns.x] %}{% endfor %}";
  std::string loops = "x";
  for (int i = 0; i < 6; ++i) loops = "{% for i in range(100000) %}" + loops + "{% endfor %}";
  auto repeated = [](const std::string& text, int count) {
    std::string made;
    for (int i = 0; i < count; ++i) made += text;
    return made;
  };
  EXPECT_THAT(error_of(loops), testing::HasSubstr("more than 5000000 steps"));
  EXPECT_THAT(error_of(doubling), testing::HasSubstr("steps"));
  EXPECT_THAT(error_of(nested_list), testing::HasSubstr("nested more than 100 levels"));
  EXPECT_THAT(error_of("{{ 'abc' * 10000000000 }}"), testing::HasSubstr("a repetition has more than"));
  EXPECT_THAT(error_of("{{ [1] * 10000000000 }}"), testing::HasSubstr("a repetition has more than"));
  EXPECT_THAT(error_of("{% for i in range(100000) %}{{ 'x' * 1000 }}{% endfor %}"),
              testing::HasSubstr("writes more than"));
  EXPECT_THAT(error_of("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}"), testing::HasSubstr("levels deep"));
  EXPECT_THAT(error_of("{{ " + repeated("(", 100000) + "1" + repeated(")", 100000) + " }}"),
              testing::HasSubstr("nested too"));
  EXPECT_THAT(error_of("{{ " + repeated("not ", 100000) + "1 }}"), testing::HasSubstr("nested too deeply"));
  EXPECT_THAT(error_of("{{ " + repeated("-", 100000) + "1 }}"), testing::HasSubstr("nested too deeply"));
  EXPECT_THAT(error_of("{{ 1" + repeated(" + 1", 100000) + " }}"), testing::HasSubstr("operations deep"));
  EXPECT_THAT(error_of("{{ x" + repeated(".x", 100000) + " }}"), testing::HasSubstr("operations deep"));
  EXPECT_THAT(error_of("{{ x" + repeated("|trim", 100000) + " }}"), testing::HasSubstr("operations deep"));
  EXPECT_THAT(error_of("{{ 1" + repeated(" if 1 else 1", 50000) + " }}"), testing::HasSubstr("nested too deeply"));
  EXPECT_THAT(error_of(repeated("{% if 1 %}", 50000)), testing::HasSubstr("nested too deeply"));
  EXPECT_THAT(error_of("{% set " + repeated("(", 50000) + "x" + repeated(")", 50000) + " = 1 %}"),
              testing::HasSubstr("nested too deeply"));
  EXPECT_THAT(error_of("{{ " + repeated("[", 120) + repeated("]", 120) + " }}"), testing::HasSubstr("too deeply"));
  EXPECT_THAT(error_of(repeated(" ", 2'000'000)), testing::HasSubstr("at most 1048576 are read"));
  EXPECT_THAT(error_of("{% set ns = namespace() %}{% set ns.ns = ns %}{{ [ns] }}"), testing::HasSubstr("namespace"));
  EXPECT_THAT(error_of("{{ 1 }}{% if true %}{{ 2 }}{% endif %}", {.steps = 5}),
              testing::HasSubstr("more than 5 steps"));
}

// Values that hold others several times, so that there are 2^60 pairs to compare, and long texts.
TEST(Jinja, ComparisonsTakeSteps) {
  const std::string pairs = "{% set a = namespace(x=[1]) %}{% set b = namespace(x=[1]) %}{% for i in range(60) %}"
                            "{% set a.x = [a.x, a.x] %}{% set b.x = [b.x, b.x] %}{% endfor %}";
  for (const char* compared :
       {"a.x == b.x", "a.x != b.x", "a.x <= b.x", "a.x < b.x", "a.x in [b.x]", "[a.x].index(b.x)", "[a.x].count(b.x)",
        "[a.x, b.x] | unique | list", "a.x in {'k': b.x}.values()", "{'k': a.x} == {'k': b.x}",
        "[a.x] | select('eq', b.x) | list", "[[a.x, 1], [b.x, 0]] | sort", "[[a.x, 1], [b.x, 0]] | max"})
    EXPECT_THAT(error_of(pairs + "{{ " + compared + " }}"), testing::HasSubstr("more than 5000000 steps")) << compared;
  const std::string changed = "{% for i in [a.x, b.x] %}{% if loop.changed(i) %}{% endif %}{% endfor %}";
  EXPECT_THAT(error_of(pairs + changed), testing::HasSubstr("more than 5000000 steps"));
  EXPECT_EQ(render(pairs + "{{ a.x == a.x }} {{ [a.x, 0] < [a.x, 1] }} {{ {'k': a.x} == {'k': a.x} }}"),
            "True True True");

  const std::string texts = "{% set a = 'x' * 640000 %}{% set b = 'x' * 640000 %}{% set d = {a: 1} %}";
  for (const char* compared :
       {"a == b", "a < b", "b in [a]", "b in d", "d[b]", "d.get(b)", "{a: 1, b: 2}", "[b] == [a]"})
    EXPECT_THAT(error_of(texts + "{% for i in range(600) %}{% set x = " + compared + " %}{% endfor %}"),
                testing::HasSubstr("more than 5000000 steps"))
        << compared;
}

// Those that it computes with are compared with transformers (snippets.txt).
TEST(Jinja, IntegersBeyond64BitsArePrintedAsTheyAre) {
  for (const char* number :
       {"9223372036854775808", "18446744073709551615", "-9223372036854775809", "123456789012345678901234567890"}) {
    const Value value = from_json(exact_json(number));
    const auto text = [&](const std::string& expression) { return render("{{ " + expression + " }}", {{"x", value}}); };
    for (const char* expression : {"x", "x | tojson", "x | string", "x | int", "'' ~ x"})
      EXPECT_EQ(text(expression), number) << expression;
    EXPECT_EQ(text("[x] | tojson ~ [x]"), fmt::format("[{0}][{0}]", number));
    EXPECT_EQ(text("x is number, x is integer, x is float, x is string"), "(True, True, False, False)");
    EXPECT_EQ(text("x == x, x > 5 or x < -5"), "(True, True)");
  }
  EXPECT_THAT(error_of("{{ 9223372036854775808 }}"), testing::HasSubstr("out of range"));
}

TEST(Jinja, CirclesOfNamespacesAndMacrosAreFreed) { // as AddressSanitizer would report otherwise
  EXPECT_EQ(
      render("{% set a = namespace() %}{% set b = namespace(a=a) %}{% set a.b = [b, a] %}"
             "{% macro f() %}x{% endmacro %}{% set a.f = f %}{% for i in [1] %}{% macro g() %}{{ f() }}{% endmacro %}"
             "{% set a.g = g %}{% endfor %}{{ a.f() }}{{ a.g() }}"),
      "xx");
}

TEST(Jinja, NoAttributeLeadsOutOfTheData) {
  for (const char* name : {"__class__", "__globals__", "__init__", "__dict__", "_name"})
    for (const char* object : {"''", "[]", "{}", "1", "none", "range", "raise_exception", "f", "loop", "''.upper"}) {
      const std::string source =
          fmt::format("{{% macro f() %}}{{% endmacro %}}{{{{ ({}).{} is defined }}}}", object, name);
      const std::string expected = std::string(object) == "loop" ? "chat.jinja" : "False";
      EXPECT_THAT(expected == "False" ? render(source) : error_of(source), testing::HasSubstr(expected)) << source;
    }
}

TEST(Jinja, RandomTokensEndWithAResultOrAnError) {
  const std::vector<std::string> pieces = {
      "{{",       "}}",     "{%",       "%}",      "{#",     "#}",        "-",           "+",
      "*",        "**",     "/",        "//",      "%",      "~",         "[",           "]",
      "(",        ")",      "{",        "}",       "==",     "<",         "=",           ".",
      ":",        "|",      ",",        "if ",     "else ",  "elif ",     "for ",        "in ",
      "endfor ",  "endif ", "set ",     "endset ", "macro ", "endmacro ", "not ",        "and ",
      "or ",      "is ",    "defined ", "x ",      "loop ",  "x",         "1",           "2.5",
      "'a'",      "\"é\"",  "range ",   "\n",      " ",      "items",     "length",      "join",
      "trim",     "split",  "none ",    "true ",   "raw ",   "endraw ",   "generation ", "endgeneration ",
      "namespace"};
  const RandomStream random(3, "templates");
  const Variables variables = {{"x", from_json({{"a", {1, 2, "é"}}, {"b", nullptr}})}};
  int rendered = 0;
  for (uint64_t round = 0; round < 20'000; ++round) {
    std::string source;
    const uint64_t count = 1 + random.bits(round * 64) % 40;
    for (uint64_t i = 0; i < count; ++i) source += pieces[random.bits(round * 64 + 1 + i) % pieces.size()];
    try {
      render(source, variables, {.steps = 100'000});
      ++rendered;
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::data);
    }
  }
  EXPECT_GT(rendered, 500);
}

} // namespace
} // namespace fvlm::jinja
