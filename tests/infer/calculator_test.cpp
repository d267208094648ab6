// The calculator of an answer: values as Python writes them, and tokens that the model did not choose.
#include "../data/small_tokenizer.h"
#include "../model/tiny.h"
#include "infer/generation_batch.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>

namespace fvlm::infer {

using namespace model;

namespace {

TEST(Calculator, WritesValuesAsPythonDoes) {
  const std::pair<const char*, const char*> values[] = {{"12 + 30", "42"},
                                                        {"2*3-10", "-4"},
                                                        {"2-3-4", "-5"},
                                                        {"12/4", "3.0"},
                                                        {"10/4*2", "5.0"},
                                                        {"0.1 + 0.2", "0.30000000000000004"},
                                                        {"1,200*3", "3600"},
                                                        {"-(2+3)*-4", "20"},
                                                        {"1.5*2", "3.0"},
                                                        {"5.", "5.0"},
                                                        {".5*4", "2.0"},
                                                        {"+7", "7"},
                                                        {"7 * (1 + 1)", "14"},
                                                        {"1e3", nullptr},
                                                        {"1/3", "0.3333333333333333"},
                                                        {"2**3", nullptr},
                                                        {"1/0", nullptr},
                                                        {"", nullptr},
                                                        {"3 4", nullptr},
                                                        {"(1+2", nullptr},
                                                        {"x + 1", nullptr},
                                                        {"1..2", nullptr},
                                                        {"10000000000/0.0000001", "1e+17"},
                                                        {"9223372036854775807+1", nullptr},
                                                        {"__import__('os')", nullptr}};
  for (const auto& [expression, value] : values)
    EXPECT_EQ(calculate(expression), value ? std::optional<std::string>(value) : std::nullopt) << expression;
  EXPECT_FALSE(calculate(std::string(100000, '(')));
  EXPECT_FALSE(calculate(std::string(100000, '-') + "1"));
}

// A tokenizer in which these texts have these ids; whatever had them has others.
Tokenizer tokenizer_with(const std::vector<std::pair<std::string, int64_t>>& ids) {
  auto json = test::small_tokenizer();
  auto& vocabulary = json["model"]["vocab"];
  vocabulary["<|im_start|>"] = 259;
  vocabulary["<|im_end|>"] = 260;
  int64_t size = 261;
  for (const auto& [text, id] : ids) {
    const auto there =
        std::find_if(vocabulary.begin(), vocabulary.end(), [&](const auto& entry) { return entry == id; });
    const bool is_special = text.size() > 1;
    const int64_t other = is_special ? size++ : vocabulary.at(text).get<int64_t>();
    if (there != vocabulary.end()) *there = other;
    vocabulary[text] = id;
    if (is_special) json["added_tokens"].push_back({{"id", id}, {"content", text}, {"special", true}});
  }
  return Tokenizer::from_json(json.dump(), "test");
}

TEST(Calculator, TheValueFollowsWhateverTheModelSays) {
  Tiny tiny(tiny_config(), at::kFloat);
  const auto answer_to = [&](std::vector<int64_t> tokens, int64_t length, const Calculator* calculator,
                             int64_t drafts) {
    GenerationBatch batch(tiny.model, *tiny.operations, {}, {.draft_tokens = drafts});
    batch.add({.tokens = std::move(tokens),
               .max_tokens = length,
               .sampling = {.repetition_penalty = 100}, // or a tiny model repeats itself
               .calculator = calculator});
    batch.add({.tokens = {5, 6}, .max_tokens = 3, .calculator = calculator}); // another one beside it
    return batch.finish().at(0).tokens;
  };
  const std::vector<int64_t> prompt{3, 1, 4};
  const auto plain = answer_to(prompt, 24, nullptr, 0);
  // Three tokens in a row that the answer has nowhere before are the expression.
  size_t at = 0;
  const auto is_new = [&](size_t i) {
    return std::find(plain.begin(), plain.begin() + static_cast<std::ptrdiff_t>(i), plain[i]) ==
           plain.begin() + static_cast<std::ptrdiff_t>(i);
  };
  while (!(is_new(at) && is_new(at + 1) && is_new(at + 2))) ASSERT_LT(++at + 2, plain.size());
  std::vector<int64_t> unused;
  for (int64_t id = 0; unused.size() < 2; ++id)
    if (std::find(plain.begin(), plain.end(), id) == plain.end()) unused.push_back(id);
  const auto calculator = Calculator::of(tokenizer_with({{"<|python_start|>", plain[at]},
                                                         {"4", plain[at + 1]},
                                                         {"<|python_end|>", plain[at + 2]},
                                                         {"<|output_start|>", unused[0]},
                                                         {"<|output_end|>", unused[1]}}));
  ASSERT_TRUE(calculator);

  std::vector<int64_t> expected(plain.begin(), plain.begin() + static_cast<std::ptrdiff_t>(at) + 3);
  expected.insert(expected.end(), {unused[0], plain[at + 1], unused[1]});
  std::vector<int64_t> so_far = prompt;
  so_far.insert(so_far.end(), expected.begin(), expected.end());
  const auto rest = answer_to(so_far, 1, nullptr, 0);
  expected.insert(expected.end(), rest.begin(), rest.end());
  for (const int64_t drafts : {0, 3})
    EXPECT_EQ(answer_to(prompt, std::ssize(expected), calculator.get(), drafts), expected) << drafts << " drafts";
  EXPECT_NE(std::vector<int64_t>(plain.begin(), plain.begin() + std::ssize(expected)), expected);
}

TEST(Calculator, IsThereForTokenizersWithItsTokensAlone) {
  EXPECT_FALSE(Calculator::of(Tokenizer::from_json(test::small_tokenizer().dump(), "test")));
}

} // namespace
} // namespace fvlm::infer
