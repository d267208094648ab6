// What an operation cannot do without: the least memory that it reads and writes, and its multiplications and
// additions.
#pragma once
#include "ops/call_observer.h"

#include <string>
#include <string_view>

namespace fvlm::bench {

struct LeastWork {
  double bytes = 0, flops = 0;

  // On a device that copies and multiplies so fast, both at once.
  double seconds(double bytes_a_second, double flops_a_second) const;
  LeastWork operator+(const LeastWork& more) const { return {bytes + more.bytes, flops + more.flops}; }
};

// Each tensor counts once, as often as it is used; small sums and positions do not. Arithmetic counts where matrices
// are multiplied.
struct Passes {
  LeastWork forward, backward; // without a backward: nothing
};
Passes least_work(const fvlm_attention_query& query);
Passes least_work(const fvlm_loss_query& query);
Passes least_work(const fvlm_kernels_query& query);
Passes least_work(const fvlm_optimizer_query& query); // AdamW's
// Of one call, which was given tensors of so many bytes: these, once each; of an optimizer's as above.
LeastWork least_work(std::string_view operation, const ops::CalledQuery& query, double bytes);

std::string shape_of(const ops::CalledQuery& query);

} // namespace fvlm::bench
