// Leaves a C library whose error callback must not return, by longjmp.
#pragma once
#include <csetjmp>

namespace fvlm {

// No object with a destructor may live in `work` or its callees: a jump skips destructors.
struct Jump {
  std::jmp_buf target{};

  // Returns false when leave() was called.
  template <class Work>
  [[gnu::noinline]] bool run(Work&& work) {
    if (setjmp(target)) return false;
    work();
    return true;
  }
  [[noreturn]] void leave() { std::longjmp(target, 1); }
};

} // namespace fvlm
