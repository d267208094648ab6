// Names a function of a plugin's table: FVLM_SLOT(fvlm_loss_v1, forward).
#pragma once
#include "plugin/kinds.h"

#include <cstddef>

#define FVLM_SLOT(table, member)                                                                                       \
  TableSlot {                                                                                                          \
#member, offsetof(table, member)                                                                                   \
  }
