// A way out of a C library that reports errors by a function which must not return.
#pragma once
#include <csetjmp>

namespace fvlm {

// No object with a destructor may live in `work` or below it: a jump skips them.
struct Jump {
  std::jmp_buf target{};

  // False: leave() was called.
  template <class Work>
  [[gnu::noinline]] bool run(Work&& work) {
    if (setjmp(target)) return false;
    work();
    return true;
  }
  [[noreturn]] void leave() { std::longjmp(target, 1); }
};

} // namespace fvlm
