// newton_schulz.cpp: the iteration, with its products distributed over threads.
#include "newton_schulz.h"

#include "common/tasks.h"

#include <algorithm>
#include <utility>

namespace fvlm::plugins {
namespace {

constexpr std::int64_t rows_per_task = 96;

void gram(const NewtonSchulzKernels& kernels, const fvlm_host* host, const Panels& x, const Panels& out, float alpha,
          float beta) {
  const std::int64_t panels = x.count();
  run_tasks(host, panels * (panels + 1) / 2, [&](int, std::int64_t task) {
    std::int64_t q = 0; // task is the index of the pair p <= q
    while ((q + 1) * (q + 2) / 2 <= task) ++q;
    kernels.gram({x, out, task - q * (q + 1) / 2, q, alpha, beta});
  });
}

} // namespace

void newton_schulz(const NewtonSchulzKernels& kernels, const fvlm_host* host, NewtonSchulzSpace& space,
                   const float coefficients[3], int steps) {
  const float a = coefficients[0], b = coefficients[1], c = coefficients[2];
  const std::int64_t rows = space.y.rows, tasks = (rows + rows_per_task - 1) / rows_per_task;
  for (int step = 0; step < steps; ++step) {
    gram(kernels, host, space.y, space.gram, 1, 0);
    gram(kernels, host, space.gram, space.polynomial, c, b);
    run_tasks(host, tasks, [&](int, std::int64_t task) {
      const std::int64_t begin = task * rows_per_task;
      kernels.update({space.y, space.polynomial, space.next, begin, std::min(begin + rows_per_task, rows), a});
    });
    std::swap(space.y, space.next);
  }
}

} // namespace fvlm::plugins
