#include "ops/torch_threads.h"

#include "plugin/host.h"

#include <ATen/Parallel.h>

namespace fvlm::ops {

ModelThreads::ModelThreads(int64_t parameters) : before_(at::get_num_threads()) {
  if (parameters < parameters_worth_threads) at::set_num_threads(1);
}

ModelThreads::~ModelThreads() {
  if (at::get_num_threads() != before_) at::set_num_threads(before_);
}

void use_torch_threads() {
  set_parallel_backend(
      [](int64_t pieces, const std::function<void(int64_t)>& piece) {
        at::parallel_for(0, pieces, 1, [&](int64_t begin, int64_t end) {
          for (int64_t index = begin; index < end; ++index) piece(index);
        });
      },
      at::get_num_threads());
}

} // namespace fvlm::ops
