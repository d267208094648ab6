// plugin.cpp: checks the arguments and packs all items of a call by best-fit decreasing. How far to read ahead is the
// engine's choice.
#include "best_fit.h"

#include <fvlm/fvlm.hpp>

#include <algorithm>
#include <limits>

namespace fvlm::plugins {
namespace {

using sdk::Failure, sdk::Support;

class BestFit : public sdk::Packer {
 public:
  static Support supports(const Query& query) {
    if (query.dimensions < 1) return sdk::refuse("expected at least one dimension but got %d", query.dimensions);
    if (!query.capacity) return sdk::refuse("capacity is NULL");
    for (int d = 0; d < query.dimensions; ++d) {
      if (query.capacity[d] < 0) {
        return sdk::refuse("capacity[%d] is %lld", d, static_cast<long long>(query.capacity[d]));
      }
    }
    if (query.max_items < 0) return sdk::refuse("max_items is %lld", static_cast<long long>(query.max_items));
    return sdk::accept(100, "best-fit decreasing over all dimensions");
  }

  // Deterministic: the seed is not used.
  void pack(const Query& query, const Pack& arguments) {
    const Support support = supports(query);
    if (support.score == 0) throw Failure(FVLM_ERROR_ARGUMENT, "%s", support.reason);
    const std::int64_t items = arguments.item_count;
    if (!arguments.bin_count || items < 0 || (items > 0 && (!arguments.sizes || !arguments.bin_of_item))) {
      throw Failure(FVLM_ERROR_ARGUMENT, "sizes, bin_of_item or bin_count is NULL for %lld items",
                    static_cast<long long>(items));
    }
    if (items > std::numeric_limits<std::int32_t>::max()) {
      throw Failure(FVLM_ERROR_UNSUPPORTED, "%lld items are more than bin_of_item can number in 32 bits",
                    static_cast<long long>(items));
    }
    for (std::int64_t i = 0; i < items * query.dimensions; ++i) {
      if (arguments.sizes[i] < 0) {
        throw Failure(FVLM_ERROR_ARGUMENT, "item %lld has size %lld", static_cast<long long>(i / query.dimensions),
                      static_cast<long long>(arguments.sizes[i]));
      }
    }
    const std::vector<std::int64_t> capacity(query.capacity, query.capacity + query.dimensions);
    const Packing packing = best_fit_decreasing(arguments.sizes, items, capacity, query.max_items);
    std::copy(packing.bin_of_item.begin(), packing.bin_of_item.end(), arguments.bin_of_item);
    *arguments.bin_count = packing.bins;
  }
};

} // namespace
} // namespace fvlm::plugins

FVLM_PLUGIN("packer-bestfit", "1.0.0", fvlm::plugins::BestFit)
