// Any bytes as a shard: its members lie within it, and none is returned twice.
#include "data/shards/grouping.h"
#include "data/shards/tar_scan.h"

#include <cstdint>
#include <cstdlib>
#include <set>
#include <sys/mman.h>
#include <unistd.h>

using namespace fvlm;

namespace {

void demand(bool holds) {
  if (!holds) std::abort();
}

} // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const int file = memfd_create("shard", 0);
  static const std::string path = "/proc/self/fd/" + std::to_string(file);
  demand(ftruncate(file, 0) == 0 && pwrite(file, data, size, 0) == static_cast<ssize_t>(size));
  RetryingFile shard(path, {.tries = 1});
  std::set<std::string> keys;
  Grouping grouping([&](const ShardSample& sample) {
    demand(keys.insert(sample.key).second && !sample.key.empty());
    std::set<std::string> names;
    for (const auto& member : sample.members) {
      demand(member.offset <= size && member.size <= size - member.offset && member.offset % 512 == 0);
      demand(names.insert(member.name).second && !member.name.empty());
    }
  });
  scan_tar(shard, [&](TarEntry&& item) {
    demand(item.header <= size);
    grouping.add(std::move(item));
  });
  grouping.finish();
  demand(grouping.reported().size() <= Grouping::max_reported);
  return 0;
}
