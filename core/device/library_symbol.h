// Functions of a library that is loaded at run time.
#pragma once
#include <dlfcn.h>

namespace fvlm::device {

// Whether the library has it; null otherwise.
template <class Function>
bool find_symbol(void* library, const char* symbol, Function& function) {
  function = reinterpret_cast<Function>(dlsym(library, symbol));
  return function != nullptr;
}

} // namespace fvlm::device
