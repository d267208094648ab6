#include "ops/call_observer.h"

namespace fvlm::ops {
namespace {

thread_local const CallObserver* current = nullptr;

} // namespace

const CallObserver* call_observer() {
  return current;
}

void use_call_observer(const CallObserver* watch) {
  current = watch;
}

} // namespace fvlm::ops
