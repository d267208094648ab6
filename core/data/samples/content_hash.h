// What tells a source's data from others, with the images and videos that its JSON names by path.
#pragma once
#include "data/shards/shard_set.h"
#include "recipe/plan.h"

#include <cstdint>

namespace fvlm {

// ShardSet::content_hash() and, where JSON names files, sizes and first bytes of those of some samples, spread over
// all. So a copy elsewhere has the same hash, for neither paths nor times count, and a million images on a network disk
// take reading a few hundred of them; but a change of single files is noticed only if they are among these.
uint64_t content_hash(const ShardSet& shards, const plan::Source& source);

} // namespace fvlm
