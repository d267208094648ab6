#include "ops/call_watch.h"

namespace fvlm::ops {
namespace {

thread_local const CallWatch* current = nullptr;

} // namespace

const CallWatch* call_watch() {
  return current;
}

void use_call_watch(const CallWatch* watch) {
  current = watch;
}

} // namespace fvlm::ops
