// Which texts of a pack a term that embeds compares with each other.
#pragma once
#include "data/stream/host_pack.h"
#include "objective/loss.h"

namespace fvlm::train {

// Every query is compared with the positives and negatives of the whole pack. Those that have the content of its own
// positive, or of the positive of a query with the same content, are left out: they are no wrong finds.
// `queries`, `texts`: of the pack, with its padding.
objective::Retrieval retrieval_of(const HostPack& host, int64_t queries, int64_t texts);

} // namespace fvlm::train
