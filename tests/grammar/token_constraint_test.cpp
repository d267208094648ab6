// Tokens that keep a text in a grammar, beside trying each of them.
#include "grammar/gbnf.h"
#include "grammar/json_schema.h"
#include "grammar/pattern.h"
#include "grammar/token_constraint.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <ctime>
#include <random>

namespace fvlm::grammar {
namespace {

std::shared_ptr<const Grammar> example() {
  return std::make_shared<const Grammar>(of_json_schema(nlohmann::ordered_json::parse(
      R"({"type": "object", "properties": {"name": {"type": "string"}, "sizes": {"type": "array", "items": {"type": "number"}}}, "required": ["name"]})")));
}

// All bytes, pieces of JSON and of words, and tokens that no text has.
const std::vector<std::string>& vocabulary() {
  static const std::vector<std::string> all = [] {
    std::vector<std::string> tokens{
        "",    "",       "{\"",  "{\"name", "name",     "na",          "n",      "\":", "\": \"",
        "\",", "\", \"", "\"}",  "},",      "sizes",    "\"sizes\":[", "[1",     "1,",  "23",
        "1.5", "]}",     " the", "the",     "\xc3\xa9", "\xa9\"",      "\n  \"", ""};
    for (int byte = 0; byte < 256; ++byte) tokens.emplace_back(1, static_cast<char>(byte));
    return tokens;
  }();
  return all;
}

std::shared_ptr<const TokenTable> table() {
  return std::make_shared<const TokenTable>(
      std::ssize(vocabulary()), [](int64_t id) -> std::string_view { return vocabulary()[static_cast<size_t>(id)]; });
}

// The walks share what is found out.
TEST(TokenConstraint, AllowsWhatTheGrammarReads) {
  const auto grammar = example();
  const auto texts = std::make_shared<ConstrainedTexts>(table(), grammar);
  std::mt19937 random(5);
  int whole = 0;
  for (int walk = 0; walk < 200; ++walk) {
    TokenConstraint constraint(texts);
    Automaton automaton(*grammar);
    Automaton::State reached = automaton.begin();
    const auto behind = [&](const std::string& bytes) {
      Automaton::State state = reached;
      for (const char c : bytes)
        if (state != Automaton::none) state = automaton.next(state, static_cast<uint8_t>(c));
      return state;
    };
    for (int step = 0; step < 60; ++step) {
      const std::vector<bool> allowed = constraint.allowed();
      std::vector<int64_t> choices;
      for (int64_t id = 0; id < std::ssize(vocabulary()); ++id) {
        const std::string& bytes = vocabulary()[static_cast<size_t>(id)];
        ASSERT_EQ(allowed[static_cast<size_t>(id)], behind(bytes) != Automaton::none && !bytes.empty()) << bytes;
        if (allowed[static_cast<size_t>(id)]) choices.push_back(id);
      }
      if (choices.empty()) {
        EXPECT_TRUE(constraint.is_whole());
        ++whole;
        break;
      }
      const int64_t token = choices[random() % choices.size()];
      reached = behind(vocabulary()[static_cast<size_t>(token)]);
      constraint.advance(token);
      ASSERT_EQ(constraint.is_whole(), automaton.accepts(reached));
    }
  }
  EXPECT_GT(whole, 0);
}

// Words with characters beyond ASCII, one in so many of them also with parts of such characters, quotes and escapes.
std::vector<std::string> words(std::mt19937& random, size_t count, size_t plain) {
  const std::vector<std::string> pieces{"a",  "b",   "e",    "x",    "Z", "7",    "0",    " ",        "_",   "-",
                                        "é",  "ß",   "中",   "😀",    "<", "\"",   "\\",   "\\n",      "\\u", "\\\"",
                                        ", ", "\":", "\xe4", "\xb8", "}", "\xf0", "\x9f", "\xed\xa0", "]",   "\n"};
  std::vector<std::string> all;
  for (int byte = 0; byte < 256; ++byte) all.emplace_back(1, static_cast<char>(byte));
  while (all.size() < count) {
    std::string& word = all.emplace_back();
    const size_t most = random() % plain == 0 ? pieces.size() : 13;
    for (size_t length = 1 + random() % (random() % 16 == 0 ? 48 : 12); length > 0; --length)
      word += pieces[random() % most];
  }
  return all;
}

std::shared_ptr<const TokenTable> table_of(const std::vector<std::string>& tokens) {
  return std::make_shared<const TokenTable>(
      std::ssize(tokens), [&](int64_t id) -> std::string_view { return tokens[static_cast<size_t>(id)]; });
}

Grammar schema(const std::string& text) {
  return of_json_schema(nlohmann::ordered_json::parse(text));
}

Grammar random_grammar(std::mt19937& random) {
  const auto upto = [&](int most) { return static_cast<int>(random() % static_cast<unsigned>(most + 1)); };
  const int fewest = upto(8), most = fewest + upto(30), items = 1 + upto(4);
  const std::string counts = fmt::format("{{{},{}}}", fewest, most),
                    string = fmt::format(R"({{"type": "string", "minLength": {}, "maxLength": {}}})", fewest, most),
                    number = R"({"type": "integer"})";
  switch (upto(7)) {
  case 0:
    return schema(string);
  case 1:
    return schema(fmt::format(R"({{"type": "string", "minLength": {}}})", fewest));
  case 2:
    return schema(fmt::format(R"({{"type": "array", "maxItems": {}, "items": {}}})", items, string));
  case 3:
    return schema(fmt::format(R"({{"type": "object", "properties": {{"a": {0}, "b": {1}}}, "required": ["b"]}})",
                              string, upto(1) == 0 ? string : number));
  case 4:
    return of_pattern(fmt::format("[a-z]{}-?[a-zA-Z0-9 ]{}", counts, counts));
  case 5:
    return of_pattern(fmt::format("(\\w{}|.{})", counts, counts));
  case 6:
    return of_gbnf(fmt::format("root ::= \"a\"? [^<]{} (\"<\" [^x]{})?", counts, counts));
  default:
    return schema(fmt::format(R"({{"type": "string", "pattern": "^[^ab]{}$"}})", counts));
  }
}

// Also where counts end, and whatever was asked for before.
TEST(TokenConstraint, AllowsWhatAPlainScanOfTheVocabularyFinds) {
  std::mt19937 random(11);
  const auto tokens = words(random, 700, 4);
  const auto table = table_of(tokens);
  int states = 0, whole = 0;
  for (int round = 0; round < 60; ++round) {
    const auto grammar = std::make_shared<const Grammar>(random_grammar(random));
    const auto texts = std::make_shared<ConstrainedTexts>(table, grammar);
    for (int walk = 0; walk < 4; ++walk) {
      TokenConstraint constraint(texts);
      Automaton automaton(*grammar);
      Automaton::State reached = automaton.begin();
      for (int step = 0; step < 25; ++step, ++states) {
        const std::vector<bool>& allowed = constraint.allowed();
        std::vector<size_t> choices;
        std::vector<Automaton::State> behind(tokens.size());
        for (size_t id = 0; id < tokens.size(); ++id) {
          behind[id] = reached;
          for (const char c : tokens[id])
            if (behind[id] != Automaton::none) behind[id] = automaton.next(behind[id], static_cast<uint8_t>(c));
          ASSERT_EQ(allowed[id], behind[id] != Automaton::none) << tokens[id] << " in round " << round;
          if (allowed[id]) choices.push_back(id);
        }
        whole += automaton.accepts(reached);
        if (choices.empty()) break;
        const size_t token = choices[random() % choices.size()];
        reached = behind[token];
        constraint.advance(static_cast<int64_t>(token));
      }
    }
  }
  EXPECT_GT(states, 1500);
  EXPECT_GT(whole, 200);
}

// Each character of such a text is a state of its own, for which most tokens need no look.
TEST(TokenConstraint, TokensWithinABoundedStringAreNotScannedForEachOfItsStates) {
  std::mt19937 random(3);
  const auto tokens = words(random, 60'000, 30);
  const auto grammar = std::make_shared<const Grammar>(schema(R"({"type": "string", "maxLength": 2000})"));
  TokenConstraint constraint(std::make_shared<ConstrainedTexts>(table_of(tokens), grammar));
  Automaton automaton(*grammar);
  const auto cpu_seconds = [] { return static_cast<double>(std::clock()) / CLOCKS_PER_SEC; };
  const auto id_of = [](char c) { return static_cast<int64_t>(static_cast<uint8_t>(c)); };
  Automaton::State state = automaton.next(automaton.begin(), '"');
  constraint.advance(id_of('"'));
  (void)constraint.allowed(); // finds which tokens are plain
  double scanning = 0, asking = 0;
  for (int step = 0; step < 40; ++step) {
    for (const char c : std::string_view("word")) constraint.advance(id_of(c)), state = automaton.next(state, id_of(c));
    const double begin = cpu_seconds();
    int64_t readable = 0;
    for (const std::string& token : tokens) {
      Automaton::State behind = state;
      for (const char c : token)
        if (behind != Automaton::none) behind = automaton.next(behind, static_cast<uint8_t>(c));
      readable += behind != Automaton::none;
    }
    const double middle = cpu_seconds();
    const std::vector<bool>& allowed = constraint.allowed();
    asking += cpu_seconds() - middle, scanning += middle - begin;
    EXPECT_EQ(std::ranges::count(allowed, true), readable);
  }
  EXPECT_LT(asking, scanning / 2) << "seconds";
}

TEST(TokenConstraint, NothingFollowsWhatIsNotAllowed) {
  TokenConstraint constraint(std::make_shared<ConstrainedTexts>(table(), example()));
  constraint.advance(4); // name, without a brace
  EXPECT_FALSE(constraint.is_whole());
  EXPECT_EQ(std::ranges::count(constraint.allowed(), true), 0);
}

// More states than are kept: a list in lists, closed again. Another text of the same grammar goes on as before.
TEST(TokenConstraint, GoesOnBehindManyStates) {
  const auto texts = std::make_shared<ConstrainedTexts>(
      table(), std::make_shared<const Grammar>(of_json_schema(nlohmann::ordered_json::object())));
  TokenConstraint constraint(texts), other(texts);
  const auto id_of = [](char c) { return std::ssize(vocabulary()) - 256 + static_cast<uint8_t>(c); };
  other.advance(id_of('['));
  constexpr int depth = 40000;
  for (int i = 0; i < depth; ++i) constraint.advance(id_of('['));
  for (int i = 0; i < depth; ++i) {
    EXPECT_FALSE(constraint.is_whole());
    constraint.advance(id_of(']'));
  }
  EXPECT_TRUE(constraint.is_whole());
  EXPECT_NE(constraint.place(), TokenConstraint(texts).place());
  EXPECT_FALSE(other.is_whole());
  other.advance(id_of(']'));
  EXPECT_TRUE(other.is_whole());
}

TEST(RecentTexts, AreSharedByEqualGrammarsUntilTheyAreFull) {
  RecentTexts recent;
  const auto tokens = table();
  const auto of_length = [](int most) {
    return std::make_shared<const Grammar>(
        of_json_schema(nlohmann::ordered_json{{"type", "string"}, {"maxLength", most}}));
  };
  const auto first = recent.of(tokens, of_length(1));
  EXPECT_EQ(recent.of(tokens, of_length(1)), first);
  for (int other = 2; other < 5; ++other) EXPECT_NE(recent.of(tokens, of_length(other)), first);
  EXPECT_EQ(recent.of(tokens, of_length(1)), first) << "four are kept";
  for (int other = 5; other < 9; ++other) (void)recent.of(tokens, of_length(other));
  EXPECT_NE(recent.of(tokens, of_length(1)), first) << "eight were asked for since";

  const auto any = std::make_shared<const Grammar>(of_json_schema(nlohmann::ordered_json::object()));
  const auto nested = recent.of(tokens, any);
  Automaton::State state = nested->begin();
  while (!nested->is_full()) state = nested->next(state, std::ssize(vocabulary()) - 256 + '[');
  EXPECT_NE(recent.of(tokens, any), nested);
}

TEST(TokenConstraint, BeginsBehindItsPreface) {
  const auto texts = std::make_shared<ConstrainedTexts>(table(), example());
  const int64_t begin = 0, end = 1, brace = 2; // tokens that no text has, and {"
  const auto byte = [](char of) { return std::ssize(vocabulary()) - 256 + static_cast<uint8_t>(of); };
  const auto count = [](const std::vector<bool>& allowed) { return std::ranges::count(allowed, true); };

  TokenConstraint constraint(texts, {begin, end, "</end>"});
  const std::vector<bool> first = constraint.allowed();
  EXPECT_TRUE(first[begin]) << "it may begin";
  EXPECT_TRUE(first[brace]) << "and need not";
  EXPECT_EQ(count(first), count(texts->allowed(texts->begin())) + 1);
  const auto before = constraint.place();
  constraint.advance(begin);
  EXPECT_NE(constraint.place(), before);
  EXPECT_EQ(count(constraint.allowed()), std::ssize(vocabulary())) << "anything is a preface";
  EXPECT_FALSE(constraint.is_whole() || constraint.is_over()) << "the text has to follow";
  for (const int64_t token : {byte('}'), begin, int64_t{brace}}) constraint.advance(token);
  constraint.advance(end);
  EXPECT_EQ(constraint.allowed(), texts->allowed(texts->begin()));
  constraint.advance(brace);
  EXPECT_EQ(constraint.place().second, texts->next(texts->begin(), brace));

  TokenConstraint spelled(texts, {{}, {}, "</end>", true});
  for (const char c : std::string("{ </en </end")) {
    EXPECT_EQ(count(spelled.allowed()), std::ssize(vocabulary()));
    spelled.advance(byte(c));
  }
  spelled.advance(byte('>'));
  EXPECT_EQ(spelled.allowed(), texts->allowed(texts->begin()));

  TokenConstraint without(texts, {{}, end, "</end>"});
  EXPECT_EQ(without.allowed(), texts->allowed(texts->begin())) << "no token begins it";
}

TEST(TokenConstraint, MayBeACallInPlaceOfAText) {
  const auto texts = std::make_shared<ConstrainedTexts>(table(), example());
  const int64_t begin = 0, end = 1, brace = 2, name = 4, call = 25; // tokens that no text has, {" and name
  const auto count = [](const std::vector<bool>& allowed) { return std::ranges::count(allowed, true); };

  const auto calls = std::make_shared<const Grammar>(of_choices({"n", "name"}));
  const Call behind{call, std::make_shared<ConstrainedTexts>(table(), calls)};
  TokenConstraint called(texts, {}, behind), said(texts, {}, behind);
  EXPECT_EQ(count(called.allowed()), count(texts->allowed(texts->begin())) + 1);
  EXPECT_TRUE(called.allowed()[static_cast<size_t>(call)]);
  EXPECT_FALSE(called.is_whole());
  EXPECT_NE(called.place(), TokenConstraint(texts).place()) << "others of the same form call nothing";
  called.advance(call);
  EXPECT_EQ(called.allowed(), TokenConstraint(behind.texts).allowed());
  EXPECT_EQ(called.place(), TokenConstraint(behind.texts).place());
  EXPECT_FALSE(called.is_whole()) << "a call has begun";
  called.advance(name);
  EXPECT_TRUE(called.is_whole() && called.is_over()) << "the answer ends behind a call";
  said.advance(brace);
  EXPECT_FALSE(said.allowed()[static_cast<size_t>(call)]) << "only at the beginning";
  EXPECT_EQ(said.place(), (std::pair{texts->number(), texts->next(texts->begin(), brace)}));

  TokenConstraint thought(texts, {begin, end, "</end>"}, behind);
  EXPECT_EQ(count(thought.allowed()), count(texts->allowed(texts->begin())) + 2);
  const auto before = thought.place();
  for (const int64_t token : {begin, call, end}) thought.advance(token);
  EXPECT_EQ(count(thought.allowed()), count(texts->allowed(texts->begin())) + 1) << "thoughts do not begin again";
  EXPECT_NE(thought.place(), before);
  EXPECT_FALSE(thought.is_whole());
  thought.advance(call);
  EXPECT_FALSE(thought.is_whole());
  thought.advance(name);
  EXPECT_TRUE(thought.is_whole());
}

// A token may end the preface and begin the text.
TEST(TokenConstraint, TakesWhatATokenHasBehindThePreface) {
  const std::vector<std::string> tokens = {"</end>\n", "</end> [", "[", "]", "</end>x"};
  const auto table = std::make_shared<const TokenTable>(
      std::ssize(tokens), [&](int64_t id) -> std::string_view { return tokens[static_cast<size_t>(id)]; });
  const auto texts = std::make_shared<ConstrainedTexts>(
      table, std::make_shared<const Grammar>(of_json_schema(
                 nlohmann::ordered_json::parse(R"({"type": "array", "items": {"type": "null"}, "maxItems": 0})"))));
  const auto behind = [&](int64_t token) {
    TokenConstraint constraint(texts, {{}, {}, "</end>", true});
    constraint.advance(token);
    return std::vector<bool>(constraint.allowed());
  };
  EXPECT_EQ(behind(0), (std::vector<bool>{false, false, true, false, false}));
  EXPECT_EQ(behind(1), (std::vector<bool>{false, false, false, true, false}));
  EXPECT_EQ(behind(4), std::vector<bool>(5)) << "what is no text is followed by nothing";
}

} // namespace
} // namespace fvlm::grammar
