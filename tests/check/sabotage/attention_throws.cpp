// attention.c as C++, so that it can throw.
#include "attention.c"
