// Files of every form mutated by seed: nothing crashes or hangs, what is untouched is read unchanged, and no sample is
// lost without a word. FVLM_MUTATIONS is the number of mutations of each form (300), FVLM_FIRST_MUTATION the first
// seed.
#include "../process_limits.h"
#include "base/log.h"
#include "base/text.h"
#include "data/shards/shard_set.h"
#include "made_forms.h"

#include <random>
#include <set>

namespace fvlm::test {
namespace {

class Mutator {
 public:
  explicit Mutator(uint64_t seed) : random_(seed * 0x9e3779b97f4a7c15 + 1) {}

  // Returns what was done. [touched_.first, touched_.second) are the places of the original that are not as they were.
  std::string mutate(std::string& bytes) {
    const size_t at = below(bytes.size()), count = 1 + below(below(4) == 0 ? 2000 : 12);
    const size_t end = std::min(at + count, bytes.size());
    touched = {at, end};
    switch (below(7)) {
    case 0:
      touched.second = bytes.size();
      bytes.resize(at);
      return fmt::format("cut at {}", at);
    case 1:
      bytes.erase(at, count);
      return fmt::format("{} bytes removed at {}", count, at);
    case 2:
      touched.second = at + 1;
      bytes.insert(at, bytes.substr(below(bytes.size()), count));
      return fmt::format("{} bytes inserted at {}", count, at);
    case 3:
      for (size_t i = at; i < end; ++i) bytes[i] = static_cast<char>(below(256));
      return fmt::format("{} random bytes at {}", count, at);
    case 4: {
      static constexpr std::string_view structure = "{}[]\",:\\\n 0";
      bytes[at] = structure[below(structure.size())];
      touched.second = at + 1;
      return fmt::format("a sign of JSON at {}", at);
    }
    case 5:
      for (size_t i = at; i < end; ++i) bytes[i] = '\0';
      return fmt::format("{} zeros at {}", count, at);
    default:
      bytes[at] = static_cast<char>(bytes[at] ^ (1 << below(8)));
      touched.second = at + 1;
      return fmt::format("a bit flipped at {}", at);
    }
  }

  size_t below(size_t count) { return random_() % count; }
  std::pair<size_t, size_t> touched;

 private:
  std::mt19937_64 random_;
};

// Where each sample stands in the file, for forms in which that can be told.
std::vector<std::pair<size_t, size_t>> extents_of(const Shard& shard) {
  std::vector<std::pair<size_t, size_t>> all;
  for (int64_t i = 0; i < shard.size(); ++i) {
    const ShardSample sample = shard.sample(i);
    if (sample.members.empty()) return {};
    all.emplace_back(sample.members[0].offset, sample.members[0].offset + sample.members[0].size);
  }
  return all;
}

struct Outcome {
  std::set<uint64_t> good; // digests of samples
  std::set<std::string> reasons;
  int64_t samples = 0, damages = 0;
};

Outcome read(const fs::path& path, const Folder& folder) {
  Outcome outcome;
  try {
    const auto shard =
        Shard::open(path, {.cache = folder / "cache", .index_beside = false, .most_unpacked = uint64_t{16} << 20});
    outcome.samples = shard->size();
    outcome.damages = static_cast<int64_t>(shard->damages());
    std::string reason;
    for (int64_t i = 0; i < shard->size(); ++i)
      if (const uint64_t digest = digest_of(*shard, i, reason))
        outcome.good.insert(digest);
      else
        outcome.reasons.insert(reason);
  } catch (const ReadError&) {
    throw;
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::data) << error.text();
    ++outcome.damages;
  }
  return outcome;
}

class MutatedForm : public testing::TestWithParam<std::string> {};
INSTANTIATE_TEST_SUITE_P(Forms, MutatedForm, testing::ValuesIn(made_forms()), [](const auto& info) {
  std::string name = info.param;
  std::replace(name.begin(), name.end(), '.', '_');
  return name;
});

// The file that says what the samples are; of a folder any of its files.
fs::path file_to_mutate(const fs::path& path, Mutator& mutator) {
  if (!fs::is_directory(path)) return path;
  if (fs::exists(path / "metadata.jsonl")) return path / "metadata.jsonl";
  std::vector<fs::path> files;
  for (const auto& entry : fs::recursive_directory_iterator(path))
    if (entry.is_regular_file()) files.push_back(entry.path());
  std::sort(files.begin(), files.end());
  return files[mutator.below(files.size())];
}

TEST_P(MutatedForm, NeverCrashesAndLosesNothingUntold) {
  set_log_level(LogLevel::error);
  const Folder folder;
  const fs::path path = write_form(GetParam(), folder / "form");
  const Outcome whole = read(path, folder);
  ASSERT_EQ(whole.samples, made_samples);
  ASSERT_EQ(whole.good.size(), made_samples - 2u);
  const bool is_plain = GetParam() == "jsonl" || GetParam() == "json" || GetParam() == "imagefolder";
  const auto original = Shard::open(path, {.cache = folder / "cache", .index_beside = false});
  const auto extents = is_plain ? extents_of(*original) : std::vector<std::pair<size_t, size_t>>{};
  std::vector<uint64_t> digests;
  std::string reason;
  for (int64_t i = 0; is_plain && i < made_samples; ++i) digests.push_back(digest_of(*original, i, reason));

  const uint64_t first = from_environment("FVLM_FIRST_MUTATION", 0), count = from_environment("FVLM_MUTATIONS", 300);
  int64_t delivered = 0, broken = 0, damages = 0, untouched = 0;
  double slowest = 0;
  for (uint64_t seed = first; seed < first + count; ++seed) {
    Mutator mutator(seed);
    const fs::path file = file_to_mutate(path, mutator);
    const std::string bytes = read_file(file);
    std::string mutated = bytes;
    const std::string what = fmt::format("seed {}, {}: {}", seed, file.string(), mutator.mutate(mutated));
    write_bytes(file, mutated);
    const double begin = processor_seconds();
    const Outcome outcome = read(path, folder);
    slowest = std::max(slowest, processor_seconds() - begin);
    write_bytes(file, bytes);
    delivered += std::ssize(outcome.good);
    broken += std::ssize(outcome.reasons);
    damages += outcome.damages;

    int64_t told = outcome.damages;
    for (const std::string& each : outcome.reasons) told += !whole.reasons.contains(each);
    // Text that is gone from one line to the same place of another, or behind a line, is no damage that shows.
    const bool between_lines = is_plain && (mutated.size() < bytes.size() && mutator.touched.second < bytes.size());
    const size_t begin_of_damage = std::max<size_t>(mutator.touched.first, 1);
    const bool behind_line = is_plain && bytes.substr(begin_of_damage - 1, 2).find('\n') != std::string::npos;
    ASSERT_TRUE(outcome.samples >= made_samples || told > 0 || between_lines || behind_line)
        << what << ": " << outcome.samples << " samples";
    for (size_t i = 0; i < extents.size(); ++i) {
      // A line break, a comma or a bracket beside a sample belongs to both of its neighbours.
      if (extents[i].first <= mutator.touched.second + 2 && extents[i].second + 2 >= mutator.touched.first) continue;
      if (GetParam() == "json" && mutator.touched.first < extents[0].first + 24) continue; // how an item begins
      if (digests[i] == 0) continue;
      ++untouched;
      ASSERT_TRUE(outcome.good.contains(digests[i])) << what << ": lost item " << i;
    }
  }
  EXPECT_LT(slowest, slowest_allowed) << "seconds for one file";
  EXPECT_LT(peak_kib(), max_memory_kib);
  fmt::print("{}: {} files, {} samples delivered ({} of them proven untouched), {} broken, {} places of damage; "
             "slowest {:.3f} s, peak {} MiB\n",
             GetParam(), count, delivered, untouched, broken, damages, slowest, peak_kib() / 1024);
}

} // namespace
} // namespace fvlm::test
