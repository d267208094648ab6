// A stream that is read by a process which may be killed at any instant, and by its successors.
#pragma once
#include "../samples/sample_maker.h"
#include "base/text.h"
#include "data/stream/loader.h"
#include "data/stream/mix_samples.h"
#include "synthetic_source.h"

#include <csignal>
#include <optional>
#include <set>
#include <sys/wait.h>
#include <thread>

namespace fvlm::test {

struct OpenedStream {
  static constexpr int64_t image_size = 8;

  OpenedStream(const Folder& folder, const std::string& shards) : mix(mix_of({1})) {
    mix.sources[0].shards = {shards};
    samples.emplace(mix, byte_tokenizer(), image_size, nullptr, plan::VisualRows{},
                    ShardOptions{.cache = folder / "cache", .open_shards = 3});
    order.emplace(Order::shuffled(mix, samples->sizes(), 42, "align", 300));
  }
  std::unique_ptr<DataLoader> loader(const Cursor& start, const std::filesystem::path& log, int workers) const {
    return std::make_unique<DataLoader>(
        *samples, *order, plan, first_fit,
        DataLoaderOptions{.workers = workers, .quarantine_log = log, .quarantine = {.share = 1}}, start);
  }
  Cursor start() const { return Composer::start(plan, *order); }

  plan::Mix mix;
  std::optional<MixSamples> samples;
  std::optional<Order> order;
  BatchPlan plan{.batch = {.tokens = 600}, .capacity = {16, 400}, .window = 32, .samples = 300};
};

inline std::vector<std::string> hashes(DataLoader& loader) {
  std::vector<std::string> all;
  while (const auto loaded = loader.next()) all.push_back(fmt::format("{:016x}", loaded->pack.hash()));
  return all;
}

inline std::set<std::string> reasons(const std::filesystem::path& log) {
  std::set<std::string> all;
  for (const auto& line : split(read_file(log), '\n'))
    if (!line.empty()) all.insert(line);
  return all;
}

// The work of a process that will be killed: after each step it writes its packs' hashes and the cursor.
inline void run_until_killed(const Folder& folder, const std::string& shards, int workers) {
  const OpenedStream opened(folder, shards);
  Cursor cursor = opened.start();
  std::string reported;
  if (std::filesystem::exists(folder / "state")) {
    const std::string state = read_file(folder / "state");
    const size_t end = state.find('\n');
    cursor = Cursor::parse(state.substr(0, end), "state");
    reported = state.substr(end + 1);
  }
  const auto loader = opened.loader(cursor, folder / "killed.jsonl", workers);
  while (const auto loaded = loader->next()) {
    reported += fmt::format("{:016x}\n", loaded->pack.hash());
    if (loaded->last) write_file_atomic(folder / "state", loaded->after.text() + "\n" + reported);
  }
}

// Kills the reading process up to `kills` times, and compares what all of them read with what one reads.
inline void expect_the_same_after_kills(const Folder& folder, const std::string& shards, int kills) {
  const OpenedStream opened(folder, shards);
  const auto expected = hashes(*opened.loader(opened.start(), folder / "broken.jsonl", 2));
  ASSERT_GT(expected.size(), 20u);
  const RandomStream random(5, "kills");
  int killed = 0;
  for (uint64_t round = 0; round < 5000; ++round) {
    const pid_t child = fork();
    if (child == 0) {
      run_until_killed(folder, shards, 1 << round % 4);
      _exit(0);
    }
    if (killed < kills) std::this_thread::sleep_for(std::chrono::microseconds(random.bits(round) % 20000));
    if (killed < kills) kill(child, SIGKILL);
    int status = 0;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    if (WIFSIGNALED(status)) {
      ASSERT_EQ(WTERMSIG(status), SIGKILL);
      ++killed;
      continue;
    }
    ASSERT_EQ(WEXITSTATUS(status), 0);
    if (killed >= kills) break;
    const std::string state = read_file(folder / "state"); // it came to the end: the next one starts again
    EXPECT_EQ(state.substr(state.find('\n') + 1), join(expected, "\n") + "\n") << "after " << killed << " deaths";
    std::filesystem::remove(folder / "state");
  }
  const std::string state = read_file(folder / "state");
  EXPECT_EQ(state.substr(state.find('\n') + 1), join(expected, "\n") + "\n") << "after " << killed << " deaths";
  EXPECT_EQ(reasons(folder / "killed.jsonl"), reasons(folder / "broken.jsonl"));
  EXPECT_EQ(killed, kills);
}

} // namespace fvlm::test
