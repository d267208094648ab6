#include "ops/torch_threads.h"

#include "plugin/host.h"

#include <ATen/Parallel.h>
#include <c10/util/ParallelGuard.h>

#ifndef _OPENMP
#error "compile this file with -fopenmp: without it at::parallel_for() and the loop below run on one thread"
#endif
// Of omp.h, which clang-tidy does not find.
extern "C" int omp_get_num_threads();
extern "C" int omp_get_thread_num();

namespace fvlm::ops {
namespace {

// at::parallel_for() is a template that knows OpenMP only where its caller is compiled for it. So is this, in which a
// piece belongs to a thread by its number alone.
void run_on_torch_threads(int64_t pieces, const std::function<void(int64_t)>& piece) {
  if (pieces < 2 || at::get_num_threads() < 2 || at::in_parallel_region()) {
    for (int64_t index = 0; index < pieces; ++index) piece(index);
    return;
  }
#pragma omp parallel
  {
    const c10::ParallelGuard mark(true);
    const int64_t threads = omp_get_num_threads();
    for (int64_t index = omp_get_thread_num(); index < pieces; index += threads) piece(index);
  }
}

} // namespace

ModelThreads::ModelThreads(int64_t parameters) : before_(at::get_num_threads()) {
  if (parameters < parameters_worth_threads) at::set_num_threads(1);
}

ModelThreads::~ModelThreads() {
  if (at::get_num_threads() != before_) at::set_num_threads(before_);
}

void use_torch_threads() {
  set_parallel_backend(run_on_torch_threads, at::get_num_threads());
}

} // namespace fvlm::ops
