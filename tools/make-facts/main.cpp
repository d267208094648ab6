// make-facts: a synthetic data set for LatentWire. Each sample has a context of a few facts about who has what, a
// question about one of them, and its answer, a colour.
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

namespace fvlm::facts {
namespace {

namespace fs = std::filesystem;

constexpr std::array names{"Anna",  "Boris", "Clara", "David", "Elena", "Felix",
                           "Greta", "Hugo",  "Irene", "Jonas", "Karla", "Lukas"};
constexpr std::array colours{"red", "blue", "green", "black", "white", "pink", "brown", "grey", "gold", "silver"};
constexpr std::array things{"kite", "boat", "drum", "lamp", "coat", "bike"};

struct Part {
  const char* name;
  int64_t samples;
  bool is_held_out;
};
constexpr std::array parts{Part{"train", 40000, false}, Part{"heldout", 500, true}};
constexpr int64_t shard_size = 2000; // samples

// All people of a context, and all colours, are different. Contexts to learn from may be shorter, which teaches a model
// sooner to look for the one fact that counts.
nlohmann::ordered_json make_sample(uint64_t seed, const Part& part, uint64_t number, int64_t most_facts) {
  shapes::Draw draw(seed, part.name, number);
  const int facts = part.is_held_out ? static_cast<int>(most_facts) : draw.between(1, static_cast<int>(most_facts));
  auto who = names;
  auto colour = colours;
  draw.shuffle(who);
  draw.shuffle(colour);
  const auto asked = static_cast<size_t>(draw.below(facts));
  std::string context, question;
  for (size_t i = 0; i < static_cast<size_t>(facts); ++i) {
    const char* thing = draw.of(things);
    context += fmt::format("{}{} has a {} {}.", i > 0 ? " " : "", who[i], colour[i], thing);
    if (i == asked) question = fmt::format("Which colour has the {} of {}?", thing, who[i]);
  }
  return {{"context", context}, {"question", question}, {"answers", {colour[asked]}}};
}

void write_tokenizer(const fs::path& folder, const shapes::BpeTrainer& trainer) {
  make_folders(folder);
  write_file_atomic(folder / "tokenizer.json", trainer.tokenizer_json());
  const nlohmann::ordered_json config{{"tokenizer_class", "PreTrainedTokenizerFast"}, {"eos_token", "<|im_end|>"}};
  write_file_atomic(folder / "tokenizer_config.json", config.dump(2) + "\n");
}

int run(cli::Arguments arguments) {
  cli::Options described(
      "--out DIR [--seed N] [--facts N]",
      "Make shards of questions about a few made facts, held-out ones, and a tokenizer for them. The same\n"
      "options give the same bytes.",
      "--out data/facts");
  described.of_program("make-facts")
      .required_value("out", "DIR", "the data set; must not be there yet")
      .value("seed", "N", "another data set for another number (1)")
      .value("facts", "N", "of a context, 1 to 10 (4)");
  const auto parsed = described.parse(arguments);
  if (!parsed) return 0;
  const fs::path out = *parsed->value("out");
  const int64_t seed = parsed->integer_or("seed", 1), facts = parsed->integer_or("facts", 4);
  if (facts < 1 || facts > std::ssize(colours))
    throw Error(ErrorKind::usage, fmt::format("--facts: expected 1 to {}, got {}", colours.size(), facts));
  if (fs::exists(out))
    throw Error(ErrorKind::data, "it is there already").at(out.string()).advise("delete it, or give another --out");
  const InterruptibleWrites interruptible;
  AtomicFolder folder(out);
  shapes::BpeTrainer trainer;
  trainer.add("Context: \nQuestion: \nAnswer: ");
  for (const Part& part : parts) {
    make_folders(folder.temporary_path() / part.name);
    for (int64_t first = 0; first < part.samples; first += shard_size) {
      ShardWriter shard(folder.temporary_path() / part.name / fmt::format("{:05}.tar", first / shard_size));
      for (int64_t number = first; number < std::min(part.samples, first + shard_size); ++number) {
        const auto sample = make_sample(static_cast<uint64_t>(seed), part, static_cast<uint64_t>(number), facts);
        const std::string text = sample.dump();
        if (number < shard_size) trainer.add(text);
        shard.add(fmt::format("{:07}.json", number), text);
      }
      shard.commit();
    }
  }
  write_tokenizer(folder.temporary_path() / "tokenizer", trainer);
  folder.commit();
  fmt::print("{}: {} to learn from, {} held out\n", out.string(), counted(parts[0].samples, "question"),
             parts[1].samples);
  return 0;
}

} // namespace
} // namespace fvlm::facts

int main(int count, char** words) {
  return fvlm::shapes::run_program("make-facts", count, words, fvlm::facts::run);
}
