// @NAME@: first fit in plain C++: each item goes into the first bin that has room for it. Short, and packs loosely: a
// starting point. fvlm/packer.h specifies each function.
#include <fvlm/fvlm.hpp>

#include <algorithm>
#include <vector>

namespace {

using namespace fvlm::sdk;
using std::int64_t;

struct Bin {
  std::vector<int64_t> room; // by dimension
  int64_t items = 0;
};

class FirstFit : public Packer {
 public:
  static Support supports(const Query& query) {
    if (query.dimensions < 1) return refuse("%d dimensions", query.dimensions);
    return accept(10, "first fit"); // the reference has 1; raise it as this gets better
  }

  void pack(const Query& query, const Pack& arguments) {
    const int64_t* const capacity = query.capacity;
    std::vector<Bin> bins;
    for (int64_t item = 0; item < arguments.item_count; ++item) {
      const int64_t* const size = arguments.sizes + item * query.dimensions;
      const auto fits = [&](const int64_t* room) {
        return std::equal(size, size + query.dimensions, room, [](int64_t a, int64_t b) { return a <= b; });
      };
      arguments.bin_of_item[item] = -1;
      if (!fits(capacity)) continue;
      auto bin = std::find_if(bins.begin(), bins.end(), [&](const Bin& each) {
        return (query.max_items == 0 || each.items < query.max_items) && fits(each.room.data());
      });
      if (bin == bins.end()) bin = bins.insert(bin, Bin{{capacity, capacity + query.dimensions}});
      for (std::size_t d = 0; d < bin->room.size(); ++d) bin->room[d] -= size[d];
      ++bin->items;
      arguments.bin_of_item[item] = static_cast<std::int32_t>(bin - bins.begin());
    }
    *arguments.bin_count = static_cast<std::int32_t>(bins.size());
  }
};

} // namespace

FVLM_PLUGIN("@NAME@", "0.1.0", FirstFit)
