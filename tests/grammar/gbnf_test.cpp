// Which texts a grammar in GBNF has, and what is said of one that is wrong.
#include "base/error.h"
#include "base/utf8.h"
#include "grammar/characters.h"
#include "grammar/gbnf.h"
#include "grammar/token_constraint.h"
#include "texts.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <vector>

namespace fvlm::grammar {
namespace {

void expect_grammars(const std::vector<Texts>& cases) {
  expect_texts(cases, [](const std::string& text) { return of_gbnf(text); });
}

std::string refusal(const std::string& text) {
  try {
    of_gbnf(text);
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::usage);
    return error.what();
  }
  return "it was accepted";
}

// A text in so many brackets.
std::string nested(size_t depth, const std::string& inside = "") {
  return std::string(depth, '[') + inside + std::string(depth, ']');
}

TEST(Gbnf, HasWhatItsRulesSay) {
  expect_grammars({
      {R"(root ::= "yes" | "no")", {"yes", "no"}, {"", "ye", "yesno", "maybe"}},
      {R"(root::="a""b")", {"ab"}, {"a", "a b"}},
      {"root ::= greeting \" \" name\ngreeting ::= \"hello\" | \"bye\"\nname ::= [A-Z] [a-z]*",
       {"hello Ann", "bye B"},
       {"hello ann", "hello ", "helloAnn"}},
      {"root ::= one-two three_4\none-two ::= \"1\"\nthree_4 ::= \"3\"", {"13"}, {"1", "3"}},
      {R"(root ::= "a"? "b"* "c"+)", {"c", "abbcc", "bc"}, {"", "ab", "aac"}},
      {R"(root ::= "a"{2} "b"{1,} "c"{,2} "d"{0,1} "e"{2,3})",
       {"aabee", "aabbccdeee"},
       {"abee", "aaee", "aabcccee", "aabe"}},
      {R"(root ::= "a"{ 2 , 3 } "b" ?)", {"aa", "aaab"}, {"a", "aaaa"}},
      {R"(root ::= "a"{0} "b")", {"b"}, {"ab"}},
      {R"(root ::= ("a" | "b" "c")+ ("d" | ))", {"a", "bcad", "bcbc"}, {"", "b", "d", "add"}},
      {R"(root ::= "" | "x")", {"", "x"}, {"xx"}},
      {"root ::=", {""}, {"x"}},
      {R"(root ::= | "x")", {"", "x"}, {"xx"}},
      {R"(root ::= (("a")))", {"a"}, {""}},
      {R"(root ::= .)", {"a", "\n", "é", "日", "😀", std::string(1, '\0')}, {"", "ab", "\x80", "\xc3", "\xed\xa0\x80"}},
  });
}

TEST(Gbnf, ReadsCommentsAndLinesAsLlamaCppAndVllmWriteThem) {
  expect_grammars({
      {"# what it is\nroot ::= a # behind a rule\n\n# between\n  b\na ::= \"#\" [#]\r\nb ::= \"b\"  # the end",
       {"##b"},
       {"#b"}},
      {"root ::= (\n  \"a\" # in a group\n  | \"b\"\n)", {"a", "b"}, {"c"}},
      {"root ::= \"a\" |\n\t\"b\"\n  | \"c\"", {"a", "b", "c"}, {"d"}},
      {"root\n::=\n\"a\"\n\"b\"", {"ab"}, {"a"}},
      {"other ::= \"b\" root ::= \"a\" other", {"ab"}, {"b"}},
  });
}

TEST(Gbnf, ReadsEscapes) {
  expect_grammars({
      {R"(root ::= "\"\\\n\r\t\x41\u00e9\U0001F600")", {"\"\\\n\r\tAé😀"}, {}},
      {R"(root ::= [\]\[\\\-\^"]+)", {"][\\-^\""}, {"a"}},
      {R"(root ::= [\x30-\u0032])", {"0", "1", "2"}, {"3", "x"}},
      {R"(root ::= "[^a]" [(|)*])", {"[^a]|", "[^a]("}, {"[^a]a"}},
  });
}

TEST(Gbnf, HasClassesOfAnyCharacters) {
  expect_grammars({
      {"root ::= [a-c_0-9-]", {"a", "c", "_", "7", "-"}, {"d", "A", "é"}},
      {"root ::= [^a-c\\n]", {"d", "é", "日", "\r"}, {"a", "\n", "", "\xff"}},
      {"root ::= [^é]", {"e", "è", "ê", "ĩ", "日"}, {"é"}},
      {"root ::= [ぁ-ゟ]+", {"ぁ", "ひらがな", "ゟ"}, {"ア", "a", "゠", "぀"}},
      {"root ::= [a-ÿ]", {"a", "z", "\x7f", "é", "ÿ"}, {"`", "Ā"}},
      {"root ::= [^]", {"a", "😀"}, {""}},
      {"root ::= [\\uD7FF-\\uE000]", {"\xed\x9f\xbf", "\xee\x80\x80"}, {"\xed\xa0\x80", "\xed\xbf\xbf"}},
  });
}

// Each character of ranges that are drawn, and each around them.
TEST(Gbnf, ClassesHaveTheirCharactersAndNoOthers) {
  std::mt19937 random(7);
  const auto drawn = [&](uint32_t most) { return std::uniform_int_distribution<uint32_t>(0, most)(random); };
  for (int round = 0; round < 60; ++round) {
    CharacterRanges ranges;
    for (uint32_t i = 0; i <= drawn(3); ++i) {
      const uint32_t first = drawn(round % 2 ? 0x10ffff : 0x900),
                     last = std::min(first + drawn(round % 3 ? 80 : 70000), 0x10ffffu);
      ranges.emplace_back(first, last);
    }
    ranges = normal(ranges);
    if (ranges.empty()) continue;
    Grammar grammar;
    const Grammar::Rule whole = grammar.new_rule();
    CharacterNodes nodes(grammar);
    grammar.define(whole, nodes.one_of(ranges, Grammar::end));
    std::vector<uint32_t> tried{0, 0x7f, 0x80, 0x7ff, 0x800, 0xffff, 0x10000, 0x10ffff};
    for (const auto& [first, last] : ranges)
      for (const uint32_t edge : {first, last})
        for (uint32_t near = edge > 70 ? edge - 70 : 0; near <= std::min(edge + 70, 0x10ffffu); ++near)
          tried.push_back(near);
    for (const uint32_t point : tried) {
      if (point >= 0xd800 && point <= 0xdfff) continue;
      std::string text;
      append_utf8(text, point);
      const bool is_in =
          std::ranges::any_of(ranges, [&](const auto& range) { return range.first <= point && point <= range.second; });
      ASSERT_EQ(has(grammar, text), is_in) << "U+" << std::hex << point;
    }
  }
}

TEST(Gbnf, RulesMayBeWithinThemselves) {
  const Grammar brackets = of_gbnf("root ::= \"[\" root? \"]\"");
  for (const size_t depth : {1, 2, 5000}) {
    EXPECT_TRUE(has(brackets, nested(depth))) << depth;
    EXPECT_FALSE(has(brackets, nested(depth) + "]")) << depth;
    EXPECT_FALSE(has(brackets, nested(depth).substr(1))) << depth;
  }
  expect_grammars({
      {"root ::= item*\nitem ::= \"(\" root \")\"", {"", "()", "(()())()"}, {"(", ")(", "(()"}},
      {"root ::= \"a\" other | \"b\"\nother ::= \"c\" root", {"b", "acb", "acacb"}, {"a", "ac", "acbb"}},
      {"root ::= \"a\" root \"a\" | \"b\" root \"b\" | \"c\"", {"c", "abacaba", "bbcbb"}, {"ab", "abcab"}},
      {"root ::= \"a\" root | \"\"", {"", std::string(5000, 'a')}, {"b"}},
      // Empty rules before and behind.
      {"root ::= ws value ws\nws ::= [ \\t]*\nvalue ::= \"1\" | \"(\" ws value ws (\"+\" ws value ws)* \")\"",
       {"1", " ( 1 + (1) ) "},
       {"", "( 1", "1 1"}},
      {"root ::= (a b)* \"!\"\na ::= \"a\"?\nb ::= \"b\"?", {"!", "abba!", "bbb!"}, {"", "!a"}},
  });
}

TEST(Gbnf, HasArithmeticAndJson) {
  const Grammar sum = of_gbnf(R"GBNF(
root   ::= term (ws [-+] ws term)*
term   ::= factor (ws ("*" | "/") ws factor)*
factor ::= "-"? ([0-9]+ ("." [0-9]+)? | "(" ws root ws ")")
ws     ::= " "?
)GBNF");
  for (const char* text : {"1", "1 + 2*3", "-(4.5/(1 - 2)) * 3", "((((7))))"}) EXPECT_TRUE(has(sum, text)) << text;
  for (const char* text : {"", "1 +", "(1", "1  + 2", "1..5", "()"}) EXPECT_FALSE(has(sum, text)) << text;
  const Grammar json = of_gbnf(R"GBNF(
root   ::= object
value  ::= object | array | string | number | ("true" | "false" | "null") ws
object ::= "{" ws ( string ":" ws value ("," ws string ":" ws value)* )? "}" ws
array  ::= "[" ws ( value ("," ws value)* )? "]" ws
string ::= "\"" ( [^"\\\x7F\x00-\x1F] | "\\" (["\\bfnrt] | "u" [0-9a-fA-F]{4}) )* "\"" ws
number ::= ("-"? ([0-9] | [1-9] [0-9]{0,15})) ("." [0-9]+)? ([eE] [-+]? [0-9] [1-9]{0,15})? ws
# Optional space: by convention, applied in this grammar after literal chars when allowed
ws ::= | " " | "\n" [ \t]{0,20}
)GBNF");
  for (const char* text : {"{}", R"({"a": [1, -2.5e3, "é\n\u00e9", {"b": null}], "c":true})", "{\n  \"a\": {}}"})
    EXPECT_TRUE(has(json, text)) << text;
  for (const char* text : {"[]", "{a: 1}", R"({"a" 1})", R"({"a": 01})", R"({"a": 1,})", R"({"a": "\x"})"})
    EXPECT_FALSE(has(json, text)) << text;
}

TEST(Gbnf, SaysWhereAMistakeIs) {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"", "the grammar has no rule 'root'"},
      {"# nothing\n", "the grammar has no rule 'root'"},
      {"start ::= \"a\"", "the grammar has no rule 'root'"},
      {"root ::= a", "line 1, column 10: there is no rule 'a'"},
      {"root ::= \"é\" a\na ::= bé", "line 2, column 8: 'é' is not expected here"},
      {"root ::= \"é\" missing", "line 1, column 14: there is no rule 'missing'"},
      {"root ::= \"a\"\nroot ::= \"b\"", "line 2, column 1: there is a rule 'root' already"},
      {"root \"a\"", "line 1, column 6: expected ::= behind the name of a rule"},
      {"root: \"a\"", "line 1, column 5: expected ::= behind the name of a rule"},
      {"\"a\"", "line 1, column 1: expected the name of a rule"},
      {"root ::= \"a\n\"", "line 1, column 10: the text does not end"},
      {"root ::= \"a", "line 1, column 10: the text does not end"},
      {"root ::= \"a\\", "line 1, column 10: the text does not end"},
      {"root ::= 'a'", "line 1, column 10: a text stands between \" and \""},
      {"root ::= [a", "line 1, column 10: the class does not end"},
      {"root ::= [a-", "line 1, column 10: the class does not end"},
      {"root ::= [a\n]", "line 1, column 10: the class does not end"},
      {"root ::= []", "line 1, column 10: no character is one of these"},
      {"root ::= [xz-a]", "line 1, column 12: expected a range from a character to one behind it"},
      {"root ::= \"\\q\"", "line 1, column 11: there is no such escape"},
      {"root ::= \"\\x4\"", "line 1, column 11: expected 2 hexadecimal digits behind \\x"},
      {"root ::= \"\\u+041\"", "line 1, column 11: expected 4 hexadecimal digits behind \\u"},
      {"root ::= \"\\ud800\"", "line 1, column 11: there is no such character"},
      {"root ::= [\\U00110000]", "line 1, column 11: there is no such character"},
      {"root ::= (\"a\"", "line 1, column 10: the group does not end"},
      {"root ::= (\"a\" %)", "line 1, column 15: expected a ) that ends the group"},
      {"root ::= \"a\")", "line 1, column 13: there is no group that it closes"},
      {"root ::= \"a\" ; \"b\"", "line 1, column 14: ';' is not expected here"},
      {"root ::= * \"a\"", "line 1, column 10: expected something to count before it"},
      {"root ::= \"a\" | +", "line 1, column 16: expected something to count before it"},
      {"root ::= \"a\"*?", "line 1, column 14: a count of a count: put a group around the first"},
      {"root ::= \"a\"{}", "line 1, column 14: expected a count from 0 to 1000"},
      {"root ::= \"a\"{1001}", "line 1, column 14: expected a count from 0 to 1000"},
      {"root ::= \"a\"{99999999999999999999}", "expected a count from 0 to 1000"},
      {"root ::= \"a\"{-1}", "line 1, column 14: expected a count from 0 to 1000"},
      {"root ::= \"a\"{3,2}", "line 1, column 13: expected a count from the least to the most"},
      {"root ::= \"a\"{2;3}", "line 1, column 15: expected a count, {2}, {2,}, {,4} or {2,4}"},
      {"root ::= (=\"a\")", "line 1, column 10: looking ahead is not supported"},
      {"root ::= <think>", "line 1, column 10: tokens are not supported"},
      {"root ::= root \"a\" | \"b\"", "line 1, column 1: the rule 'root' calls itself before it has read anything"},
      {"root ::= a\na ::= \"x\"? b\nb ::= (a | \"y\") \"z\"", "calls itself before it has read anything"},
      {"root ::= e root \"x\" | \"y\"\ne ::= \"\"", "the rule 'root' calls itself before it has read anything"},
      {"root ::= \"a\" b\nb ::= \"b\" b", "line 2, column 1: the rule 'b' never ends"},
      {"root ::= \"\xff\"", "the grammar is no UTF-8"},
      {"root ::= " + std::string(101, '(') + "\"a\"" + std::string(101, ')'),
       "line 1, column 110: more than 100 groups"},
      {"root ::= \"" + std::string(1 << 20, 'a') + '"', "the grammar has 1048587 bytes, more than 1048576"},
  };
  for (const auto& [text, message] : cases) {
    const std::string said = refusal(text);
    EXPECT_NE(said.find(message), std::string::npos) << text.substr(0, 100) << "\n" << said;
  }
}

TEST(Gbnf, LimitsWhatItBecomes) {
  const std::string large = "the grammar is too large";
  for (const std::string text :
       {"root ::= (((\"a\"{1000}){1000}){1000}){1000}", "root ::= ((((\"\"{1000}){1000}){1000}){1000}){1000}",
        "root ::= ((([^a]{1000}){1000}){0,1000})*", "root ::= (([a-é] | \"b\"){1000}){1000}"})
    EXPECT_NE(refusal(text).find(large), std::string::npos) << text << "\n" << refusal(text);
  std::string many = "root ::= \"a\"\n";
  for (int i = 0; i < 1000; ++i) many += "r" + std::to_string(i) + " ::= \"a\"\n";
  EXPECT_NE(refusal(many).find("line 1001, column 1: the grammar has more than 1000 rules"), std::string::npos);
  EXPECT_NE(refusal("root ::= \"" + std::string(100'000, 'a') + '"').find("too large"), std::string::npos);
}

// A text of letters that are drawn.
std::string drawn_text(std::mt19937& random, size_t letters, const std::string& alphabet) {
  std::string text;
  while (text.size() < letters) text += alphabet[random() % alphabet.size()];
  return text;
}

// Each letter doubles the ways in which the text may go on.
TEST(Gbnf, TextsOfManyMeaningsAreReadOnce) {
  const Grammar grammar = of_gbnf("root ::= \"x\" root \"b\" | \"x\" root \"c\" | \"x\"");
  std::mt19937 random(3);
  for (int i = 0; i < 10; ++i) {
    const std::string text = std::string(60, 'x') + drawn_text(random, 59, "bc");
    EXPECT_TRUE(has(grammar, text)) << text;
    EXPECT_FALSE(has(grammar, text + "b")) << text;
  }
}

// Two ways a rule, which double with each rule, before the first letter or behind one.
TEST(Gbnf, WaysThatMultiplyBeforeALetterAreReadOnce) {
  std::mt19937 random(4);
  for (const size_t rules : {20, 40})
    for (const std::string before : {"", "q"}) {
      SCOPED_TRACE(fmt::format("{} rules, {}", rules, before));
      std::string same, empty = fmt::format("root ::= \"{}\" r0 \"z\"\nr{} ::= \n", before, rules);
      same = fmt::format("root ::= \"{}\" r0\nr{} ::= \"a\"\n", before, rules);
      for (size_t i = 0; i < rules; ++i) {
        same += fmt::format("r{0} ::= r{1} \"x\" | r{1} \"y\"\n", i, i + 1);
        empty += fmt::format("r{0} ::= r{1} r{1}\n", i, i + 1);
      }
      const Grammar grammar = of_gbnf(same), of_nothing = of_gbnf(empty);
      Automaton automaton(grammar);
      auto state = automaton.begin();
      ASSERT_FALSE(automaton.is_full());
      for (const char c : before + "a" + drawn_text(random, rules, "xy")) {
        EXPECT_FALSE(automaton.accepts(state));
        state = automaton.next(state, static_cast<uint8_t>(c));
        ASSERT_NE(state, Automaton::none) << c;
        ASSERT_FALSE(automaton.is_full());
      }
      EXPECT_TRUE(automaton.accepts(state));
      EXPECT_TRUE(has(of_nothing, before + "z"));
      EXPECT_FALSE(has(of_nothing, before));
    }
}

// A thousand callers of one rule, which multiply with each letter.
TEST(Gbnf, CallersThatMultiplyAreReadOnce) {
  std::string text = "root ::= \"x\"";
  for (int i = 0; i < 1000; ++i) text += fmt::format(" | \"x\" root \"{}.\"", i);
  const Grammar grammar = of_gbnf(text);
  Automaton automaton(grammar);
  auto state = automaton.begin();
  for (const char c : std::string("xxxxx") + "0.999.17.500.") {
    state = automaton.next(state, static_cast<uint8_t>(c));
    ASSERT_NE(state, Automaton::none) << c;
    ASSERT_FALSE(automaton.is_full());
  }
  EXPECT_TRUE(automaton.accepts(state));
}

// Rules that are drawn: alternatives of letters and rules, by their number.
struct DrawnRules {
  static constexpr size_t letter = 100; // what is behind it stands for letters
  std::vector<std::vector<std::vector<size_t>>> rules;

  explicit DrawnRules(std::mt19937& random) : rules(2 + random() % 3) {
    for (auto& rule : rules) {
      rule.resize(1 + random() % 3);
      for (auto& alternative : rule) {
        alternative.resize(random() % 4);
        for (size_t& symbol : alternative) symbol = random() % 2 ? random() % rules.size() : letter + random() % 2;
      }
    }
  }
  std::string gbnf() const {
    std::string text;
    for (size_t i = 0; i < rules.size(); ++i) {
      text += i == 0 ? "root ::=" : fmt::format("r{} ::=", i);
      for (size_t j = 0; j < rules[i].size(); ++j) {
        if (j > 0) text += " |";
        for (const size_t symbol : rules[i][j])
          text += symbol >= letter ? fmt::format(" \"{}\"", symbol == letter ? 'a' : 'b')
                  : symbol == 0    ? " root"
                                   : fmt::format(" r{}", symbol);
      }
      text += "\n";
    }
    return text;
  }
  // Where a text of the rule that begins here may end.
  std::set<size_t> ends(size_t rule, const std::string& text, size_t begin) const {
    std::set<size_t> all;
    for (const auto& alternative : rules[rule]) {
      std::set<size_t> places{begin};
      for (const size_t symbol : alternative) {
        std::set<size_t> next;
        for (const size_t at : places) {
          if (symbol < letter)
            next.merge(ends(symbol, text, at));
          else if (at < text.size() && text[at] == (symbol == letter ? 'a' : 'b'))
            next.insert(at + 1);
        }
        places = next;
      }
      all.merge(places);
    }
    return all;
  }
};

TEST(Gbnf, DrawnGrammarsHaveTheTextsThatTheirRulesDerive) {
  std::mt19937 random(5);
  int accepted = 0, texts = 0;
  for (int round = 0; round < 2000; ++round) {
    const DrawnRules drawn(random);
    std::optional<Grammar> grammar;
    try {
      grammar = of_gbnf(drawn.gbnf());
    } catch (const Error&) { // it has no end, or calls itself before it has read anything
      continue;
    }
    ++accepted;
    for (size_t size = 0; size <= 6; ++size)
      for (unsigned bits = 0; bits < 1u << size; ++bits) {
        std::string text;
        for (size_t i = 0; i < size; ++i) text += bits >> i & 1 ? 'b' : 'a';
        const bool is_text = drawn.ends(0, text, 0).contains(size);
        ASSERT_EQ(has(*grammar, text), is_text) << drawn.gbnf() << text;
        texts += is_text;
      }
  }
  EXPECT_GT(accepted, 200);
  EXPECT_GT(texts, 1000);
}

// As in a long answer: what is known is dropped on the way, and the text goes on.
TEST(Gbnf, ATextGoesOnWhereAnotherAutomatonBegins) {
  const Grammar grammar = of_gbnf("root ::= \"[\" (root | [a-z]+) (\",\" root)? \"]\"");
  auto automaton = std::make_unique<Automaton>(grammar);
  auto state = automaton->begin();
  std::vector<std::unique_ptr<Automaton>> before;
  int i = 0;
  for (const char c : nested(200, "ab,[c]")) {
    state = automaton->next(state, static_cast<uint8_t>(c));
    ASSERT_NE(state, Automaton::none) << i;
    if (++i % 7 != 0) continue;
    auto next = std::make_unique<Automaton>(*automaton, state);
    EXPECT_EQ(next->accepts(next->begin()), automaton->accepts(state));
    state = next->begin();
    automaton = std::move(next);
  }
  EXPECT_TRUE(automaton->accepts(state));
  EXPECT_EQ(automaton->next(state, ']'), Automaton::none);
}

TEST(Grammar, IncludesOthersWithTheirRules) {
  Grammar all;
  const Grammar::Rule whole = all.new_rule();
  const auto list = all.include(of_gbnf("root ::= \"[\" (root | word*) \"]\"\nword ::= [a-c]\n")),
             loop = all.include(of_gbnf("root ::= \"x\"* \"y\""));
  all.define(whole, all.text("(", all.call(list, all.call(loop, all.call(list, all.text(")", Grammar::end))))));
  for (const char* text : {"([[ab]]xxy[])", "([]y[c])"}) EXPECT_TRUE(has(all, text)) << text;
  for (const char* text : {"[ab]", "([]y)", "([d]y[])", "([]x[])", "([[]y[])"}) EXPECT_FALSE(has(all, text)) << text;
}

} // namespace
} // namespace fvlm::grammar
