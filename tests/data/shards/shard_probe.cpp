// shard_probe SHARD CACHE [SLOW]: reads every member of a shard, as a program of its own whose disk a test makes fail.
// Prints what it read, or why not. SLOW: reads of more than 10 ms count as slow.
#include "data/shards/shard.h"

#include <fmt/format.h>

int main(int count, char** arguments) {
  using namespace fvlm;
  ShardOptions options{.cache = arguments[2]};
  int64_t paused = 0;
  options.retry.pause = [&](std::chrono::milliseconds pause) { paused += pause.count(); };
  if (count > 3) options.retry.slow = std::chrono::milliseconds(10);
  try {
    auto shard = Shard::open(arguments[1], options);
    for (int64_t i = 0; i < shard->size(); ++i) {
      ShardSample sample = shard->sample(i);
      fmt::print("{}{}", sample.key, sample.damage);
      for (const auto& member : sample.members) {
        auto bytes = shard->read(member);
        fmt::print(" {}={}", member.name, std::string_view(reinterpret_cast<const char*>(bytes.data()), bytes.size()));
      }
      fmt::print("\n");
    }
    fmt::print("damages {} paused {} ms\n", shard->damages(), paused);
  } catch (const ReadError& error) {
    fmt::print("ReadError errno {} offset {}: {}\n", error.error_number(), error.offset(), error.text());
    return 4;
  } catch (const Error& error) {
    fmt::print("Error: {}\n", error.text());
    return 1;
  }
}
