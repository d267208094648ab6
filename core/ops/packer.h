// Which samples share a pack, through a chosen table: see fvlm/packer.h. Host memory, no tensors.
#pragma once
#include "ops/backend.h"

namespace fvlm::ops {

class Packer {
 public:
  // max_items 0: no limit. Throws Error(plugin) where the plugin refuses.
  Packer(Backend<fvlm_packer_v1> backend, std::vector<int64_t> capacity, int64_t max_items);

  struct Bins {
    std::vector<int32_t> of_item; // -1: larger than an empty bin
    int32_t count = 0;
  };
  // sizes: [items, dimensions], row after row.
  Bins pack(const std::vector<int64_t>& sizes, uint64_t seed) const;

 private:
  fvlm_packer_query query() const;
  Backend<fvlm_packer_v1> backend_;
  std::vector<int64_t> capacity_;
  int64_t max_items_;
};

} // namespace fvlm::ops
