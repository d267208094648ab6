#include "device/runtime.h"

namespace fvlm::device {
namespace {

Runtime* in_use = nullptr;

} // namespace

Runtime* runtime() {
  return in_use;
}

void use_runtime(Runtime* runtime) {
  in_use = runtime;
}

} // namespace fvlm::device
