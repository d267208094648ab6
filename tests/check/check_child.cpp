// The program that these tests start to check a plugin in: what `fvlm-engine plugin check --child` is in the product.
#include "check/child.h"
#include "ops/reference.h"

int main(int, char** words) {
  fvlm::check::run_child(words[1], fvlm::ops::reference_entry);
}
