#define FVLM_TEMPLATE template
#include "base/templates.h"
