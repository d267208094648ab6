// The definitions of base/templates.h.
#define FVLM_TEMPLATE template
#include "base/templates.h"
