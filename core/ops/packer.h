// Bin packing of samples into packs, by a selected plugin: see fvlm/packer.h. Works on host memory, without tensors.
#pragma once
#include "ops/backend.h"

namespace fvlm::ops {

class Packer {
 public:
  // max_items: of a bin; 0 for no limit. Throws Error(plugin) where the plugin does not support the query.
  Packer(Backend<fvlm_packer_v1> backend, std::vector<int64_t> capacity, int64_t max_items);

  struct Bins {
    std::vector<int32_t> of_item; // -1: larger than an empty bin
    int32_t count = 0;
  };
  // sizes: [items, dimensions], row-major.
  Bins pack(const std::vector<int64_t>& sizes, uint64_t seed) const;

 private:
  fvlm_packer_query query() const;
  Backend<fvlm_packer_v1> backend_;
  std::vector<int64_t> capacity_;
  int64_t max_items_;
};

} // namespace fvlm::ops
