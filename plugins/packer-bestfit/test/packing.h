// packing.h: calls the built packer with vectors.
#pragma once

#include "common/testing/harness.h"

namespace fvlm::testing {

struct Packed {
  fvlm_status status = FVLM_OK;
  std::string error;
  std::vector<std::int32_t> bin;
  std::int32_t bins = -1;
};

class PackerTest : public ::testing::Test {
 protected:
  Packed pack(const std::vector<std::int64_t>& sizes, const std::vector<std::int64_t>& capacity,
              std::int64_t max_items = 0, std::uint64_t seed = 0) const {
    const auto dimensions = static_cast<std::int32_t>(capacity.size());
    const fvlm_packer_query query{sizeof query, dimensions, max_items, capacity.data()};
    Packed packed;
    packed.bin.assign(sizes.size() / capacity.size(), -7);
    const fvlm_packer_pack arguments{sizeof arguments,  static_cast<std::int64_t>(packed.bin.size()),
                                     sizes.data(),      seed,
                                     packed.bin.data(), &packed.bins};
    char text[512] = "";
    fvlm_error error{sizeof error, sizeof text, text};
    packed.status = plugin->pack(plugin.instance(), &query, &arguments, &error);
    packed.error = text;
    return packed;
  }

  Host host;
  Plugin<fvlm_packer_v1> plugin{FVLM_TEST_LIBRARY, "fvlm.packer/1", host};
};

} // namespace fvlm::testing
