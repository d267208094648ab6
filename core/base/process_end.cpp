#include "base/process_end.h"

#include <cstdio>
#include <cstdlib>
#include <dlfcn.h>

namespace fvlm {

void end_process(int code) {
#ifndef FVLM_SANITIZED
  if (!dlopen("libcuda.so.1", RTLD_LAZY | RTLD_NOLOAD)) {
    std::fflush(stdout);
    std::quick_exit(code);
  }
#endif
  std::exit(code);
}

} // namespace fvlm
