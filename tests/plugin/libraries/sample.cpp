// sample.c as C++, for statements that throw.
#include "sample.c"
