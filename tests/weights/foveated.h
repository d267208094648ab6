// A foveated connector of these settings.
#pragma once
#include "model/connector/foveated/settings.h"
#include "model/weights/connector.h"

namespace fvlm {

inline ConnectorConfig foveated(int64_t query_dim = 384, double visual_scale = 0.14,
                                connector::Attend attend = connector::Attend::deep) {
  connector::Foveated settings;
  settings.query_dim = query_dim;
  settings.visual_scale = visual_scale;
  settings.attend = attend;
  return settings;
}

} // namespace fvlm
