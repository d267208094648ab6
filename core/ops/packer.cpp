#include "ops/packer.h"

#include <fmt/format.h>

namespace fvlm::ops {

Packer::Packer(Backend<fvlm_packer_v1> backend, std::vector<int64_t> capacity, int64_t max_items)
    : backend_(std::move(backend)), capacity_(std::move(capacity)), max_items_(max_items) {
  fvlm_support support{sizeof support, 0, {}};
  const fvlm_packer_query problem = query();
  detail::call_setup(backend_.instance(), "packer", "supports",
                     [&](fvlm_error*) { return backend_.table().supports(&problem, &support), FVLM_OK; });
  detail::require_support(backend_.instance(), "packer", support);
}

fvlm_packer_query Packer::query() const {
  return {sizeof(fvlm_packer_query), static_cast<int32_t>(capacity_.size()), max_items_, capacity_.data()};
}

Packer::Bins Packer::pack(const std::vector<int64_t>& sizes, uint64_t seed) const {
  const fvlm_packer_query problem = query();
  const size_t items = sizes.size() / capacity_.size();
  Bins bins{std::vector<int32_t>(items, -1), 0};
  const fvlm_packer_pack arguments{
      sizeof arguments, static_cast<int64_t>(items), sizes.data(), seed, bins.of_item.data(), &bins.count};
  ErrorSink sink;
  guard_call(
      backend_.plugin(), "packer pack", sink,
      [&] { return backend_.table().pack(backend_.instance().get(), &problem, &arguments, sink.get()); },
      [&] { return fmt::format("\n  items: {}\n  dimensions: {}", items, capacity_.size()); });
  return bins;
}

} // namespace fvlm::ops
