// The connectors that a recipe can name.
#pragma once
#include "recipe/connector_settings.h"
#include "recipe/schema/containers.h"
#include "recipe/schema/registered.h"

#include <vector>

namespace fvlm::connector {

using Settings = recipe::Alternative<plan::ConnectorSettings>;

// Those of connectors.inc; a plain table in a recipe is the first. A program may add its own before it reads the first
// recipe or model directory.
std::vector<Settings>& all_settings();

} // namespace fvlm::connector
