#include "feed/packer.h"

#include "ops/packer.h"

namespace fvlm::feed {

PackFunction choose_packer(Registry& registry, const plan::BackendPreferences& preferences, const PackSize& capacity,
                           SelectionReport* report) {
  const std::vector<int64_t> sizes = {capacity.frames, capacity.rows};
  const fvlm_packer_query query{sizeof query, 2, 0, sizes.data()};
  const auto choice = select<fvlm_packer_v1>(registry, BackendPreference::of(preferences), query);
  if (report) *report = choice.report;
  const ops::Backend<fvlm_packer_v1> backend(choice, at::kCPU);
  return [backend](const std::vector<int64_t>& items, const PackSize& room, int64_t most_items, uint64_t seed) {
    return ops::Packer(backend, {room.frames, room.rows}, most_items).pack(items, seed).of_item;
  };
}

} // namespace fvlm::feed
