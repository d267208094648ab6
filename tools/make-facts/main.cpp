// make-facts: a synthetic data set for LatentWire. The context of a sample says who ordered which food, its question
// names one of those people, and its answer is that one's food.
#include "base/atomic_file.h"
#include "base/error.h"
#include "base/file.h"
#include "base/log.h"
#include "base/text.h"
#include "cli/options.h"
#include "data/shards/shard_writer.h"
#include "make-shapes/bpe_trainer.h"
#include "make-shapes/draw.h"
#include "make-shapes/program.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <array>
#include <set>

namespace fvlm::facts {
namespace {

namespace fs = std::filesystem;

// Words of four letters: a word's place in the bytes then follows from its place in the text.
constexpr std::array names{"Anna", "Bill", "Carl", "Dave", "Emma", "Fred",
                           "Gina", "Hugo", "Iris", "Jack", "Kate", "Lisa"};
constexpr std::array foods{"milk", "rice", "soup", "fish", "eggs", "corn", "plum", "kiwi", "beef", "tofu"};

constexpr int64_t held_out = 500, shorter = 20000, longest = 60000; // samples
constexpr int64_t shard_size = 2000;                                // samples
constexpr int questions_to_learn = 8;

struct Sample {
  std::string context, question, answer;

  std::string json() const {
    return nlohmann::ordered_json{{"context", context}, {"question", question}, {"answers", {answer}}}.dump();
  }
  std::string text() const { return fmt::format("Orders: {}, {} {}", context, question, answer); }
};

// All people of a context, and all foods, are different. A sample with several questions has the further ones in its
// answer. They are drawn with replacement: who were asked about each person once could answer by exclusion.
Sample make_sample(shapes::Draw& draw, int facts, int questions) {
  auto who = names;
  auto food = foods;
  draw.shuffle(who);
  draw.shuffle(food);
  Sample sample;
  for (size_t i = 0; i < static_cast<size_t>(facts); ++i)
    sample.context += fmt::format("{}{} {}", i > 0 ? ", " : "", who[i], food[i]);
  for (int i = 0; i < questions; ++i) {
    const auto asked = static_cast<size_t>(draw.below(facts));
    if (i == 0) sample.question = who[asked];
    sample.answer += i == 0 ? food[asked] : fmt::format(", {} {}", who[asked], food[asked]);
  }
  return sample;
}

// Writes the shards of a folder, of samples that `make` gives for their numbers.
template <class Make>
void write_shards(const fs::path& folder, int64_t samples, const Make& make) {
  make_folders(folder);
  for (int64_t first = 0; first < samples; first += shard_size) {
    ShardWriter shard(folder / fmt::format("{:05}.tar", first / shard_size));
    for (int64_t number = first; number < std::min(samples, first + shard_size); ++number)
      shard.add(fmt::format("{:07}.json", number), make(static_cast<uint64_t>(number)).json());
    shard.commit();
  }
}

void write_tokenizer(const fs::path& folder, const shapes::BpeTrainer& trainer) {
  make_folders(folder);
  write_file_atomic(folder / "tokenizer.json", trainer.tokenizer_json());
  const nlohmann::ordered_json config{{"tokenizer_class", "PreTrainedTokenizerFast"}, {"eos_token", "<|im_end|>"}};
  write_file_atomic(folder / "tokenizer_config.json", config.dump(2) + "\n");
}

// Held-out contexts are of `most` facts. Those to learn from are none of them, and of 1 to `most` facts.
void write_parts(const fs::path& folder, uint64_t seed, int most) {
  shapes::BpeTrainer trainer;
  std::set<std::string> kept_out;
  write_shards(folder / "heldout", held_out, [&](uint64_t number) {
    shapes::Draw draw(seed, "heldout", number);
    Sample sample = make_sample(draw, most, 1);
    kept_out.insert(sample.context);
    trainer.add(sample.text());
    return sample;
  });
  for (int facts = 1; facts <= most; ++facts) {
    const std::string part = fmt::format("train/{}", facts);
    write_shards(folder / part, facts < most ? shorter : longest, [&](uint64_t number) {
      shapes::Draw draw(seed, part, number);
      Sample sample = make_sample(draw, facts, questions_to_learn);
      while (kept_out.contains(sample.context)) sample = make_sample(draw, facts, questions_to_learn);
      return sample;
    });
  }
  write_tokenizer(folder / "tokenizer", trainer);
}

int run(cli::Arguments arguments) {
  cli::Options described(
      "--out DIR [--seed N] [--facts N]",
      "Make shards of questions about a few made facts, held-out ones, and a tokenizer for them. Those to\n"
      "learn from are in train/1, train/2, ... by the facts of a context. The same options give the same bytes.",
      "--out data/facts");
  described.of_program("make-facts")
      .required_value("out", "DIR", "the data set; must not be there yet")
      .value("seed", "N", "another data set for another number (1)")
      .value("facts", "N", "of a held-out context, and the most of others, 2 to 10 (4)");
  const auto parsed = described.parse(arguments);
  if (!parsed) return 0;
  const fs::path out = *parsed->value("out");
  const int64_t seed = parsed->integer_or("seed", 1), facts = parsed->integer_or("facts", 4, 2, std::ssize(foods));
  if (fs::exists(out))
    throw Error(ErrorKind::data, "it is there already").at(out.string()).advise("delete it, or give another --out");
  const InterruptibleWrites interruptible;
  AtomicFolder folder(out);
  write_parts(folder.temporary_path(), static_cast<uint64_t>(seed), static_cast<int>(facts));
  folder.commit();
  fmt::print("{}: {} to learn from, {} held out\n", out.string(), counted((facts - 1) * shorter + longest, "sample"),
             held_out);
  return 0;
}

} // namespace
} // namespace fvlm::facts

int main(int count, char** words) {
  return fvlm::shapes::run_program("make-facts", count, words, fvlm::facts::run);
}
