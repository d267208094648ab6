// What the parts of a model are written with: values on a tape, the operations, and segments of packed rows.
#pragma once
#include "model/parameters.h"
#include "model/recompute.h"
#include "ops/operations.h"

namespace fvlm::model {

using ops::Heads;
using ops::Operations;
using ops::Segments;
using ops::Tape;
using ops::Value;

} // namespace fvlm::model
