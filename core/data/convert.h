// The verb `data convert`: writes samples of any form to tar shards, as they are.
#pragma once
#include "data/shards/shard.h"
#include "recipe/plan.h"

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace fvlm {

struct Converted {
  int64_t samples = 0, broken = 0, shards = 0;
  uint64_t bytes = 0;
  std::vector<std::string> reasons; // of the first broken ones
};

// `out` is a name with one "%06d", which stands for the number of a shard; a shard is full once it has `shard_bytes`.
// The samples keep their order, and get numbers for keys. One whose files are missing keeps its place and carries the
// reason, so that both forms are read in the same order. Throws Error(output) where a file has such a name already.
Converted convert(const plan::Source& source, const std::string& out, uint64_t shard_bytes, const ShardOptions& options,
                  const std::function<void(int64_t done, int64_t all)>& progress);

} // namespace fvlm
