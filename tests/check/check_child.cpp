// The child process in which these tests check a plugin, in place of `fvlm-engine plugin check --child`.
#include "check/child.h"
#include "ops/reference.h"

int main(int, char** words) {
  fvlm::check::run_child(words[1], fvlm::ops::reference_entry);
}
